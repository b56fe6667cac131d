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

from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata, PullObjectRequest, PullObjectResponse

from rondo.federation.letter import KINDS, PART

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


class Honest:
    """The answers of a server that has one letter; at some routes another one."""

    def __init__(
        self, letter: bytes | None = None, kind: str = "round", **others: Callable[[bytes], Iterable[bytes]]
    ) -> None:
        self._others = {name.replace("_", "-"): other for name, other in others.items()}
        self.asked: list[str] = []
        self._letter, self._pulled = letter or b"", b"" if letter is None else pulled(kind)

    def __call__(self, path: str, body: bytes) -> Iterable[bytes]:
        self.asked.append(path)
        if path in self._others:
            return self._others[path](body)
        if path == "activate-node":
            return [http(ActivateNodeResponse(node_id=2).SerializeToString())]
        if path == "pull-messages":
            return [http(self._pulled)]
        if path == "pull-object":
            place = int(PullObjectRequest.FromString(body).object_id.rpartition("/")[2])
            return [part(self._letter[place * PART : (place + 1) * PART])]
        return [http()]


def pulled(kind: str, number: str = "0" * 32) -> bytes:
    """The announcement of a letter."""
    about = Metadata(message_id=number, message_type=KINDS[kind])
    return PullMessagesResponse(messages_list=[Message(metadata=about)]).SerializeToString()


def part(content: bytes | None) -> bytes:
    """A part of a letter."""
    there = content is not None
    found = PullObjectResponse(object_found=there, object_available=there, object_content=content or b"")
    return http(found.SerializeToString())


SITE = """
import json, sys, time
from pathlib import Path
from rondo.federation.site.line import connection
from rondo.federation.site.line.connection import TurnedAway, Unreachable
from rondo.federation.identity.keys import SiteKeys
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
            letter = node.next()
            told = "none" if letter is None else f"letter of {len(letter.data)}"
            if letter is not None:
                node.answer(letter, b"reply")
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
