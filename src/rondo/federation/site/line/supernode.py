"""A site's end of the line to the server: a Flower SuperNode that runs no code but this program's.

Flower's own command runs the code that its server sends. Here a site answers letters (docs/dev/adr/0017-flower.md). It
fetches only the letter in a message, and at most the bytes that its owner allows: see
:mod:`rondo.federation.site.line.connection`.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from io import BytesIO
from math import isfinite
from pathlib import Path
from typing import Self, TypeVar

from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, RecordDict
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from rondo.federation import flower
from rondo.federation.flower import fleet_pb2, heartbeat_pb2, inflatable_object, message_pb2
from rondo.federation.identity.certificates import public_pem
from rondo.federation.letter import record
from rondo.federation.program import Program
from rondo.federation.signature import notice_in, sign
from rondo.federation.site.line.connection import Connection, TurnedAway, Unreachable

LARGEST = 2**31
"""Bytes of the largest letter, unless a site's owner says otherwise."""
_SMALL = 2**20
"""Bytes of the largest answer that is no part of a letter: the names of 13,000 parts."""
_PART = 2**20 + flower.LARGEST_CHUNK
"""Bytes of the largest part of a letter."""
_PARTS = 10_000
"""Most parts of a letter: of 5 MiB each in Flower's settings."""
_BEAT, _BEAT_TIMEOUT = 30.0, 5.0
"""Seconds after which a silent site counts as gone, and for the answer to a sign of life."""
_LOOK = 0.2
"""Seconds between looks whether the site is to stop, or has been silent for long."""

A = TypeVar("A", bound=Protobuf)


class TooLarge(Exception):
    """A letter has more bytes than the site's owner allows. It was not fetched to its end.

    ``message``: the message without its letter, to be answered by the reason.
    """

    def __init__(self, message: Message, largest: int) -> None:
        super().__init__(f"a letter of more than {largest} bytes, and the site's owner allows no more")
        self.message = message


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

    def next(self) -> Message | None:
        """The next message to this site, with its letter; None while there is none, and where the server withdrew it
        while it was fetched. Raises :class:`TooLarge`."""
        self._asking = True
        try:
            pulled = self._ask(
                "pull-messages", fleet_pb2.PullMessagesRequest(node=self._here), fleet_pb2.PullMessagesResponse
            )
        finally:
            self._asking = False
        if not pulled.messages_list:
            return None
        try:
            metadata = flower.metadata_from_proto(pulled.messages_list[0].metadata)
            if not isfinite(metadata.created_at + metadata.ttl):
                raise ValueError("the time is not finite")
            letter = self._letter(metadata.run_id, pulled.message_object_trees[0])
            received = message_pb2.ConfirmMessageReceivedRequest(
                node=self._here, run_id=metadata.run_id, message_object_id=metadata.message_id
            )
            self._ask("confirm-message-received", received, message_pb2.ConfirmMessageReceivedResponse)
        except (TurnedAway, _Withdrawn):  # a site that is turned away hears it again at its next question
            return None
        except (ValueError, LookupError, TypeError, RecursionError):
            raise Unreachable("it sends what is not a letter") from None
        if letter is None:
            raise TooLarge(flower.make_message(metadata, content=RecordDict()), self._largest)
        return flower.make_message(metadata, content=record(letter))

    def answer(self, message: Message, letter: bytes) -> None:
        """Answer ``message`` by ``letter``."""
        reply = Message(record(letter), reply_to=message)
        flower.number(reply)
        pushed = fleet_pb2.PushMessagesRequest(
            node=self._here,
            messages_list=[flower.message_to_proto(flower.remove_content_from_message(reply))],
            message_object_trees=[inflatable_object.get_object_tree(reply)],
        )
        session = self._ask("push-messages", pushed, fleet_pb2.PushMessagesResponse)
        wanted = set(session.objects_to_push)
        for name, part in inflatable_object.get_all_nested_objects(reply).items():
            if name in wanted:
                asked = message_pb2.PushObjectRequest(
                    node=self._here,
                    run_id=message.metadata.run_id,
                    object_id=name,
                    object_content=part.deflate(),
                    session_id=session.session_id,
                )
                self._ask("push-object", asked, message_pb2.PushObjectResponse)

    # --- the parts of a letter ------------------------------------------------------------------------------------

    def _letter(self, run: int, tree: message_pb2.ObjectTree) -> bytes | None:
        """The letter in the message ``tree``; None if it is too large. Raises :class:`_Withdrawn`, and ValueError and
        its like for anything else."""
        for _ in range(_ABOVE):
            (tree,) = tree.children
        array = self._part(run, tree.object_id, "Array", _SMALL)
        names = inflatable_object.get_object_head_values_from_object_content(array)[1]
        order = json.loads(array.partition(flower.HEAD_BODY_DIVIDER)[2])["arraychunk_ids"]
        if len(order) > _PARTS:
            raise ValueError(f"{len(order)} parts")
        letter, places = BytesIO(), dict[str, tuple[int, int]]()
        for name in (names[index] for index in order):
            end = letter.tell()
            if name in places:  # an array may have the same chunk several times
                start, size = places[name]
                letter.seek(start)
                body: bytes | memoryview = letter.read(size)
                letter.seek(end)
            else:
                body = _body(self._part(run, name, "ArrayChunk", _PART))
            places[name] = end, len(body)
            if end + len(body) > self._largest:
                return None
            letter.write(body)
        return letter.getvalue()

    def _part(self, run: int, name: str, kind: str, largest: int) -> bytes:
        """An object of a message."""
        asked = message_pb2.PullObjectRequest(node=self._here, run_id=run, object_id=name)
        pulled = self._ask("pull-object", asked, message_pb2.PullObjectResponse, largest)
        if not (pulled.object_found and pulled.object_available):
            raise _Withdrawn
        content: bytes = pulled.object_content
        if not content.startswith(kind.encode() + b" "):
            raise ValueError(f"no {kind}")
        return content

    # --- requests -------------------------------------------------------------------------------------------------

    @property
    def _here(self) -> flower.Node:
        assert self._node is not None, "not connected"
        return self._node

    def _ask(self, route: str, asked: Protobuf, like: type[A], largest: int = _SMALL) -> A:
        """The server's answer, of at most ``largest`` bytes, at a route of the Fleet API."""
        return self._asked(self._line, route, asked, like, largest)

    def _asked(self, line: Connection, route: str, asked: Protobuf, like: type[A], largest: int) -> A:
        path, body = f"/v1/fleet/{route}", asked.SerializeToString()
        headers = {"content-type": flower.PROTOBUF_MEDIA_TYPE, "accept": flower.PROTOBUF_MEDIA_TYPE}
        headers |= sign(self._key, "POST", path, body, self._program, datetime.now(UTC))
        content, notice = line.post(path, body, headers, largest)
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
                    self._asked(self._pulse, "deactivate-node", gone, fleet_pb2.DeactivateNodeResponse, _SMALL)
                    break
                if not self._asking and time.monotonic() - self._heard > _BEAT / 3:
                    self._asked(self._pulse, "send-node-heartbeat", here, answer, _SMALL)
        self._pulse.close()


_ABOVE = 3
"""Objects above the array of a letter: message, records, record of arrays."""


def _body(part: bytes) -> memoryview:
    """An object without its head."""
    return memoryview(part)[part.index(flower.HEAD_BODY_DIVIDER) + 1 :]
