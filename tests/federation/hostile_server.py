"""A server with the right certificate that answers whatever it likes, and a site in a process of its own."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from flwr.app import Message
from flwr.app.message import make_message, remove_content_from_message
from flwr.app.metadata import Metadata
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse, PushMessagesResponse
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PullObjectResponse
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from rondo.federation.letter import KINDS, record

Answer = Callable[[str, bytes], Iterable[bytes]]
"""The bytes in answer to a request, by the end of its path and its body."""


def http(body: bytes = b"", status: str = "200 OK", *headers: str) -> bytes:
    """An answer of HTTP."""
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextmanager
def serving(answer: Answer, keys: Path | None, port: int = 0) -> Iterator[int]:
    """A server with the keys of a federation's server, or without TLS; yields its port."""
    context = None
    if keys is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(keys / "server.crt", keys / "server.key")
    listening = socket.create_server(("127.0.0.1", port))

    def serve(side: socket.socket) -> None:
        with suppress(OSError, ValueError), side:
            if context is None and side.recv(1, socket.MSG_PEEK) == b"\x16":  # TLS, of which it knows nothing
                side.sendall(b"".join(answer("", b"")))
                return
            stream = side if context is None else context.wrap_socket(side, server_side=True)
            with stream, stream.makefile("rb") as asked:
                while line := asked.readline():
                    path = line.split()[1].decode().rpartition("/")[2]
                    length = 0
                    while (header := asked.readline().strip().lower()) != b"":
                        if header.startswith(b"content-length:"):
                            length = int(header.split(b":")[1])
                    for piece in answer(path, asked.read(length)):
                        stream.sendall(piece)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def message(letter: bytes, kind: str = "round", **changes: Any) -> Message:
    """A message with ``letter``, as a server sends it."""
    fields = {"created_at": now().timestamp(), "ttl": 60.0, "message_type": KINDS[kind], **changes}
    metadata = Metadata(1, "", 1, 2, "", "", **fields)
    made = make_message(metadata, content=record(letter))
    metadata.__dict__["_message_id"] = made.object_id
    return made


class Honest:
    """The answers of a server that has one letter; at some routes another one."""

    def __init__(self, letter: Message | None = None, **others: Callable[[bytes], Iterable[bytes]]) -> None:
        self._others = {name.replace("_", "-"): other for name, other in others.items()}
        self.asked: list[str] = []
        self.parts, self.pulled = {}, b""
        if letter is not None:
            self.parts = {name: part.deflate() for name, part in get_all_nested_objects(letter).items()}
            self.pulled = pulled(letter, get_object_tree(letter))

    def __call__(self, path: str, body: bytes) -> Iterable[bytes]:
        self.asked.append(path)
        if path in self._others:
            return self._others[path](body)
        if path == "activate-node":
            return [http(ActivateNodeResponse(node_id=2).SerializeToString())]
        if path == "pull-messages":
            return [http(self.pulled)]
        if path == "pull-object":
            return [part(self.parts.get(PullObjectRequest.FromString(body).object_id))]
        if path == "push-messages":
            return [http(PushMessagesResponse(session_id="1").SerializeToString())]
        return [http()]


def pulled(letter: Message, tree: ObjectTree) -> bytes:
    """The announcement of a message."""
    proto = message_to_proto(remove_content_from_message(letter))
    return PullMessagesResponse(messages_list=[proto], message_object_trees=[tree]).SerializeToString()


def part(content: bytes | None) -> bytes:
    """An object of a message."""
    there = content is not None
    found = PullObjectResponse(object_found=there, object_available=there, object_content=content or b"")
    return http(found.SerializeToString())


SITE = """
import json, sys, time
from pathlib import Path
from rondo.federation.site.line import connection
from rondo.federation.site.line.connection import TurnedAway, Unreachable
from rondo.federation.identity.keys import SiteKeys
from rondo.federation.letter import content_of
from rondo.federation.site.line.supernode import SuperNode, TooLarge

def memory(field):
    (line,) = [l for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(field)]
    return int(line.split()[1]) * 1024

connection._PATIENCE = 1.0
keys = SiteKeys.read(Path(sys.argv[1]))
for line in sys.stdin:
    port, largest = json.loads(line)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
    before, began = memory("VmRSS"), time.monotonic()
    try:
        with SuperNode(f"localhost:{port}", keys.private_key, keys.ca, largest) as node:
            message = node.next()
            told = "none" if message is None else f"letter of {len(content_of(message))}"
            if message is not None:
                node.answer(message, b"reply")
    except (TurnedAway, Unreachable, TooLarge) as error:
        told = f"{type(error).__name__}: {error}"
    print(json.dumps([told, memory("VmHWM") - before, time.monotonic() - began]), flush=True)
"""


class Apart:
    """A site in a process of its own, which asks one server after another for a letter."""

    def __init__(self, keys: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SITE, str(keys)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def asks(self, port: int, largest: int = 2**20) -> tuple[str, float, float]:
        """The outcome, the bytes of memory that it took at most, and its seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([port, largest]) + "\n")
        self._process.stdin.flush()
        told, peak, seconds = json.loads(self._process.stdout.readline())
        return told, peak, seconds

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=20)
