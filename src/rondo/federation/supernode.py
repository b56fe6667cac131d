"""A site's end of the line to the server: a Flower SuperNode that runs no code but this program's.

Flower's own command runs the code that its server sends. Here a site answers letters (docs/adr/0017-flower.md).
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Self, TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient

from rondo.federation.letter import record
from rondo.federation.program import Program
from rondo.federation.signature import Signing

T = TypeVar("T")

_LOOK = 0.2
"""Seconds between looks whether the site is to stop, or has been silent for long."""


class Unreachable(Exception):
    """The server cannot be reached now. It may come back."""


class Refused(Exception):
    """The server turns this site away, with its reason."""


class SuperNode:
    """A site's connection to the server at ``address``.

    ``key``: the private key that signs every request.
    ``ca``: file with the certificate of the authority that vouches for the server; None connects without TLS.
    ``program``: by default one without predecessors.
    ``told``: called with a line of text that the server has for the site's owner.
    ``stop``: once it is set, the server is told that the site goes, and answers a question that it holds.

    Every method raises :class:`Unreachable` and :class:`Refused`.
    """

    def __init__(
        self,
        address: str,
        key: ec.EllipticCurvePrivateKey,
        ca: Path | None,
        program: Program | None = None,
        told: Callable[[str], None] = lambda line: None,
        stop: threading.Event | None = None,
    ) -> None:
        logging.getLogger("flwr").setLevel(logging.CRITICAL)
        public = key.public_key()
        self._public_key = public_key_to_bytes(public)
        trusted = None if ca is None else ca.read_bytes()
        self._signing = Signing(key, program or Program.fresh(), told)
        signed = (RuntimeVersionHttpInterceptor("SuperNode"), self._signing)
        self._client = FleetHttpClient.from_server_address(address, ca is None, trusted, signed)
        self._node: Node | None = None
        self._over = threading.Event()
        self._stop = stop or threading.Event()
        self._asking = False
        """Whether the server has a question of this site, which says that the site is there."""

    def __enter__(self) -> Self:
        """Connect, and from then on say every few seconds that the site is there."""
        asked = ActivateNodeRequest(public_key=self._public_key, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        self._node = Node(node_id=_asked(lambda: self._client.ActivateNode(asked)).node_id)
        self._over.clear()
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        with suppress(Unreachable, Refused):
            _asked(lambda: self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._here.node_id)))
        self._client.close()

    def next(self) -> Message | None:
        """The next message to this site, with everything in it; None while there is none, and where the server withdrew
        it while it was fetched."""
        self._asking = True
        try:
            pulled = _asked(lambda: self._client.PullMessages(PullMessagesRequest(node=self._here)))
        finally:
            self._asking = False
        if not pulled.messages_list:
            return None
        metadata = message_from_proto(pulled.messages_list[0]).metadata
        parts = {t.object_id: b"" for t in iterate_object_tree(pulled.message_object_trees[0])}
        received = ConfirmMessageReceivedRequest(
            node=self._here, run_id=metadata.run_id, message_object_id=metadata.message_id
        )
        try:
            for name in parts:
                asked = PullObjectRequest(node=self._here, run_id=metadata.run_id, object_id=name)
                parts[name] = _asked(partial(self._client.PullObject, asked)).object_content
            _asked(lambda: self._client.ConfirmMessageReceived(received))
        except Refused:  # withdrawn; a site that is turned away hears it again at its next question
            return None
        try:
            message = inflate_object_from_contents(metadata.message_id, parts)
        except Exception:  # the server dropped it meanwhile
            return None
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = metadata.message_id
        return message

    def answer(self, message: Message, letter: bytes) -> None:
        """Answer ``message`` by ``letter``."""
        reply = Message(record(letter), reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        pushed = PushMessagesRequest(
            node=self._here,
            messages_list=[message_to_proto(remove_content_from_message(reply))],
            message_object_trees=[get_object_tree(reply)],
        )
        session = _asked(lambda: self._client.PushMessages(pushed))
        wanted = set(session.objects_to_push)
        for name, part in get_all_nested_objects(reply).items():
            if name in wanted:
                asked = PushObjectRequest(
                    node=self._here,
                    run_id=message.metadata.run_id,
                    object_id=name,
                    object_content=part.deflate(),
                    session_id=session.session_id,
                )
                _asked(partial(self._client.PushObject, asked))

    @property
    def _here(self) -> Node:
        assert self._node is not None, "not connected"
        return self._node

    def _beat(self) -> None:
        """Say that the site is there where no other request does, for instance while it trains; and that it goes once
        it is to stop. A server that does not hear it, or that was started anew, shows itself at the next letter."""
        asked = SendNodeHeartbeatRequest(node=self._here, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        while not self._over.wait(_LOOK):
            with suppress(Unreachable, Refused):
                if self._asking and self._stop.is_set():
                    _asked(lambda: self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._here.node_id)))
                    return
                if not self._asking and time.monotonic() - self._signing.heard > HEARTBEAT_DEFAULT_INTERVAL / 3:
                    _asked(lambda: self._client.SendNodeHeartbeat(asked))


def _asked(call: Callable[[], T]) -> T:
    """The server's answer to ``call``."""
    try:
        return call()
    except httpx.HTTPStatusError as error:
        if error.response.status_code >= 500:
            raise Unreachable(f"it answers {error.response.status_code}") from None
        raise Refused(_detail(error.response)) from None
    except (httpx.HTTPError, ssl.SSLError, OSError) as error:
        raise Unreachable(str(error) or type(error).__name__) from None


def _detail(response: httpx.Response) -> str:
    """The server's reason in an error."""
    try:
        content = response.json()
        detail = content.get("detail") or content.get("message") or response.reason_phrase
        return str(detail)[:200]
    except (ValueError, AttributeError):
        return f"{response.status_code} {response.reason_phrase}"
