"""A site's end of the line to the server: a Flower SuperNode that runs no code but this program's.

Flower's own command runs the code that its server sends. Here a site answers letters (docs/dev/adr/0017-flower.md). It
fetches only the letter in a message, and at most the bytes that its owner allows: see
:mod:`rondo.federation.site.line.connection`.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Self, TypeVar

from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from rondo.federation import flower
from rondo.federation.flower import fleet_pb2, heartbeat_pb2, message_pb2
from rondo.federation.identity.certificates import public_pem
from rondo.federation.letter import PART, Letter, kind_of
from rondo.federation.program import Program
from rondo.federation.signature import notice_in, sign
from rondo.federation.site.line.connection import Connection, TurnedAway, Unreachable

LARGEST = 2**31
"""Bytes of the largest letter, unless a site's owner says otherwise."""
_SMALL = 2**20
"""Bytes of the largest answer, beside the part of a letter in it."""
_BEAT, _BEAT_TIMEOUT = 30.0, 5.0
"""Seconds after which a silent site counts as gone, and for the answer to a sign of life."""
_LOOK = 0.2
"""Seconds between looks whether the site is to stop, or has been silent for long."""

A = TypeVar("A", bound=Protobuf)


class TooLarge(Exception):
    """A letter has more bytes than the site's owner allows. It was not fetched to its end.

    ``letter``: the letter without its content, to be answered by the reason.
    """

    def __init__(self, letter: Letter, largest: int) -> None:
        super().__init__(f"a letter of more than {largest} bytes, and the site's owner allows no more")
        self.letter = letter


class _Withdrawn(Exception):
    """The server dropped the letter while it was fetched."""


class SuperNode:
    """A site's connection to the server at ``address``, HOST:PORT.

    ``key``: the private key that signs every request.
    ``ca``: file with the certificate of the authority that vouches for the server; None connects without TLS.
    ``largest``: bytes of the largest letter that is taken.
    ``program``: by default one without predecessors.
    ``told``: called with a line of text that the server has for the site's owner.
    ``stop``: once it is set, the server is told that the site goes, and answers a question that it holds.

    Every method raises :class:`Unreachable` and :class:`TurnedAway`.
    """

    def __init__(
        self,
        address: str,
        key: ec.EllipticCurvePrivateKey,
        ca: Path | None,
        largest: int = LARGEST,
        *,
        program: Program | None = None,
        told: Callable[[str], None] = lambda line: None,
        stop: threading.Event | None = None,
    ) -> None:
        logging.getLogger("flwr").setLevel(logging.CRITICAL)
        host, _, port = address.rpartition(":")
        way = (host.strip("[]"), int(port), ca)
        self._key, self._public_key = key, public_pem(key.public_key())
        self._line = Connection(*way)
        self._pulse = Connection(*way, _BEAT_TIMEOUT)
        self._largest = largest
        self._node: flower.Node | None = None
        self._over = threading.Event()
        self._program, self._told, self._stop = program or Program.fresh(), told, stop or threading.Event()
        self._asking, self._heard = False, time.monotonic()
        """Whether the server has a question of this site, which says that the site is there; when it answered last."""

    def __enter__(self) -> Self:
        """Connect, and from then on say every few seconds that the site is there."""
        asked = fleet_pb2.ActivateNodeRequest(public_key=self._public_key, heartbeat_interval=_BEAT)
        try:
            self._node = flower.Node(node_id=self._ask("activate-node", asked, fleet_pb2.ActivateNodeResponse).node_id)
        except BaseException:
            self._line.close()
            raise
        self._over.clear()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with suppress(Unreachable, TurnedAway):
            self._ask(
                "deactivate-node",
                fleet_pb2.DeactivateNodeRequest(node_id=self._here.node_id),
                fleet_pb2.DeactivateNodeResponse,
            )
        self._line.close()

    def next(self) -> Letter | None:
        """The next letter to this site; None while there is none, and where the server withdrew it while it was
        fetched. Raises :class:`TooLarge`."""
        self._asking = True
        try:
            pulled = self._ask(
                "pull-messages", fleet_pb2.PullMessagesRequest(node=self._here), fleet_pb2.PullMessagesResponse
            )
        finally:
            self._asking = False
        if not pulled.messages_list:
            return None
        about, content = pulled.messages_list[0].metadata, BytesIO()
        letter = Letter(about.message_id, kind_of(about.message_type), b"")
        try:
            for place in itertools.count():
                part = self._part(f"{letter.number}/{place}")
                if content.tell() + len(part) > self._largest:
                    raise TooLarge(letter, self._largest)
                content.write(part)
                if len(part) < PART:
                    break
        except (TurnedAway, _Withdrawn):  # a site that is turned away hears it again at its next question
            return None
        return replace(letter, data=content.getvalue())

    def answer(self, letter: Letter, reply: bytes) -> None:
        """Answer ``letter`` by ``reply``."""
        for place, start in enumerate(range(0, len(reply) + 1, PART)):
            part = reply[start : start + PART]
            name = f"{letter.number}/{place}"
            asked = message_pb2.PushObjectRequest(node=self._here, object_id=name, object_content=part)
            self._ask("push-object", asked, message_pb2.PushObjectResponse)

    def _part(self, name: str) -> bytes:
        """A part of a letter. Raises :class:`_Withdrawn`."""
        asked = message_pb2.PullObjectRequest(node=self._here, object_id=name)
        pulled = self._ask("pull-object", asked, message_pb2.PullObjectResponse, _SMALL + PART)
        if not pulled.object_found:
            raise _Withdrawn
        content: bytes = pulled.object_content
        return content

    # --- requests -------------------------------------------------------------------------------------------------

    @property
    def _here(self) -> flower.Node:
        assert self._node is not None, "not connected"
        return self._node

    def _ask(
        self, route: str, asked: Protobuf, like: type[A], largest: int = _SMALL, line: Connection | None = None
    ) -> A:
        """The server's answer, of at most ``largest`` bytes, at a route of the Fleet API."""
        path, body = f"/v1/fleet/{route}", asked.SerializeToString()
        headers = {"content-type": flower.PROTOBUF_MEDIA_TYPE, "accept": flower.PROTOBUF_MEDIA_TYPE}
        headers |= sign(self._key, "POST", path, body, self._program, datetime.now(UTC))
        content, notice = (line or self._line).post(path, body, headers, largest)
        self._heard = time.monotonic()
        if (text := notice_in(notice)) is not None:
            self._told(text)
        try:
            answer: A = like.FromString(content)
            return answer
        except DecodeError:
            raise Unreachable("its answer is not from a Rondo server") from None

    def _beat(self) -> None:
        """Say that the site is there where no other request does, for instance while it trains; and that it goes once
        it is to stop. A server that does not hear it, or that was started anew, shows itself at the next letter."""
        here = heartbeat_pb2.SendNodeHeartbeatRequest(node=self._here, heartbeat_interval=_BEAT)
        gone = fleet_pb2.DeactivateNodeRequest(node_id=self._here.node_id)
        answer = heartbeat_pb2.SendNodeHeartbeatResponse
        while not self._over.wait(_LOOK):
            with suppress(Unreachable, TurnedAway):
                if self._asking and self._stop.is_set():
                    self._ask("deactivate-node", gone, fleet_pb2.DeactivateNodeResponse, line=self._pulse)
                    break
                if not self._asking and time.monotonic() - self._heard > _BEAT / 3:
                    self._ask("send-node-heartbeat", here, answer, line=self._pulse)
        self._pulse.close()
