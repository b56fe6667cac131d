"""A server may send a site anything, of any size: the site tells it in a line, within its owner's memory."""

from __future__ import annotations

import gzip
import itertools
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flwr.proto.fleet_pb2 import PullMessagesResponse
from flwr.proto.message_pb2 import Message, ObjectTree
from hostile_server import Apart, Honest, http, part, pulled, serving
from parties import Parties, write_sites

from rondo.engine.wire.letters import Reply
from rondo.federation.identity import keys
from rondo.federation.identity.keys import ServerKeys
from rondo.federation.letter import PART
from rondo.federation.plan import Consent
from rondo.federation.server.line.superlink import SuperLink
from rondo.federation.site import run as site_program
from rondo.federation.site.line.connection import TurnedAway, Unreachable
from rondo.federation.site.line.supernode import SuperNode, TooLarge

MEGABYTE = bytes(2**20)
LETTER = b"letter"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys"
    keys.make(["localhost"], ["north"], path, days=10, clients={})
    return path


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[Apart]:
    site = Apart(folder / "north")
    with serving(Honest(LETTER), folder / "server") as port:
        assert site.asks(port)[0] == "letter of 6"  # everything is imported
    yield site
    site.close()


def endless(*pieces: bytes) -> Iterable[bytes]:
    return itertools.chain(pieces[:-1], itertools.repeat(pieces[-1]))


def drip(head: bytes) -> Iterator[bytes]:
    yield head
    while True:
        time.sleep(0.2)
        yield b"x"


def deeper(levels: int) -> bytes:
    """An announcement with a tree that no parser of protobuf builds."""
    field = b""
    for _ in range(levels):
        field = b"\x12" + varint(len(field)) + field
    return pulled("round") + b"\x1a" + varint(len(field)) + field


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number % 128 + 128]) + varint(number // 128)


WIDE = PullMessagesResponse(messages_list=[Message()] * 400_000).SerializeToString()
TREES = PullMessagesResponse(message_object_trees=[ObjectTree()] * 400_000).SerializeToString()
HEAD = b"HTTP/1.1 200 OK\r\n"
BOMB = 64 * gzip.compress(bytes(2**24), 9)  # in 64 members, which are made at once
MB = 2**20

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "gzip of a gigabyte": (
        {"pull_messages": lambda _: [http(BOMB, "200 OK", "content-encoding: gzip")]},
        "packed (gzip)",
    ),
    "small gzip": (
        {"pull_messages": lambda _: [http(gzip.compress(b""), "200 OK", "content-encoding: GZIP")]},
        "packed (gzip)",
    ),
    "encoded twice": (
        {"activate_node": lambda _: [http(b"x", "200 OK", "content-encoding: br", "content-encoding: gzip")]},
        "packed (br, gzip)",
    ),
    "gzip in an error": (
        {"pull_messages": lambda _: [http(BOMB, "403 Forbidden", "content-encoding: gzip")]},
        "packed (gzip)",
    ),
    "endless body": ({"pull_messages": lambda _: endless(HEAD + b"\r\n", MEGABYTE)}, "more than"),
    "endless error": ({"pull_messages": lambda _: endless(b"HTTP/1.1 403 No\r\n\r\n", MEGABYTE)}, "more than"),
    "endless chunks": (
        {"pull_messages": lambda _: endless(HEAD + b"transfer-encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 10_000)},
        "more than",
    ),
    "endless part": ({"pull_object": lambda _: endless(HEAD + b"\r\n", MEGABYTE)}, "more than"),
    "endless headers": ({"pull_messages": lambda _: endless(HEAD, b"a: b\r\n" * 1000)}, "Unreachable: "),
    "endless header": ({"pull_messages": lambda _: endless(HEAD, b"a: ", b"b" * 1000)}, "Unreachable: "),
    "endless interim answers": (
        {"pull_messages": lambda _: endless(b"HTTP/1.1 103 Hints\r\n\r\n" * 1000)},
        "more than",
    ),
    "endless announcement of a size": (
        {"pull_messages": lambda _: [HEAD + b"content-length: 1" + b"0" * 15 + b"\r\n\r\n", *[MEGABYTE] * 20]},
        "more than",
    ),
    "size of an error that does not come": (
        {"pull_messages": lambda _: [HEAD + b"content-length: nan\r\n\r\n"]},
        "Unreachable: ",
    ),
    "byte after byte": ({"pull_messages": lambda _: drip(HEAD + b"\r\n")}, "in time"),
    "header byte after byte": ({"pull_messages": lambda _: drip(HEAD + b"a: ")}, "in time"),
    "letter byte after byte": ({"pull_object": lambda _: drip(HEAD + b"\r\n")}, "in time"),
    "silence": ({"pull_messages": lambda _: iter(lambda: time.sleep(30) or b"", None)}, "in time"),
    "no protobuf": ({"pull_messages": lambda _: [http(b"<html>")]}, "not from a Rondo server"),
    "no protobuf at first": ({"activate_node": lambda _: [http(b"<html>")]}, "not from a Rondo server"),
    "redirect": ({"pull_messages": lambda _: [http(b"", "307 Go", "location: http://localhost/")]}, "answers 307"),
    "redirect at first": ({"activate_node": lambda _: [http(b"", "301 Go", "location: /x")]}, "answers 301"),
    "error of a gateway": ({"pull_messages": lambda _: [http(b"<html>", "502 Bad Gateway")]}, "answers 502"),
    "page that is not there": ({"pull_messages": lambda _: [http(b"<html>", "404 Not Found")]}, "answers 404"),
    "reason of lists": ({"activate_node": lambda _: [http(b"[" * 60_000, "403 No")]}, "answers 403"),
    "reason of a list": ({"activate_node": lambda _: [http(b'{"detail": [1]}', "403 No")]}, "answers 403"),
    "reason": ({"activate_node": lambda _: [http(b'{"detail": "go away"}', "403 No")]}, "TurnedAway: go away"),
    "no HTTP": ({"pull_messages": lambda _: [b"SSH-2.0-OpenSSH\r\n"]}, "Unreachable: "),
    "status of letters": ({"pull_messages": lambda _: [b"HTTP/1.1 abc OK\r\n\r\n"]}, "Unreachable: "),
    "another protocol": ({"pull_messages": lambda _: [b"HTTP/1.1 101 Switch\r\nupgrade: x\r\n\r\n"]}, "Unreachable: "),
    "message that is cut": ({"pull_messages": lambda _: [http(pulled("round")[:-3])]}, "Rondo server"),
    "tree beyond all depth": ({"pull_messages": lambda _: [http(deeper(5_000))]}, "Rondo server"),
    "many messages": ({"pull_messages": lambda _: [http(WIDE)]}, "letter of 6"),
    "many trees": ({"pull_messages": lambda _: [http(TREES)]}, "none"),
    "long number": ({"pull_messages": lambda _: [http(pulled("round", "0" * 900_000))]}, "letter of 6"),
    "parts without end": ({"pull_object": lambda _: [part(bytes(PART))]}, "TooLarge: "),
    "part larger than any": ({"pull_object": lambda _: [part(bytes(PART + 2**21))]}, "more than"),
    "part that is no protobuf": ({"pull_object": lambda _: [http(b"\xff" * 100)]}, "Rondo server"),
    "part that is not there": ({"pull_object": lambda _: [part(None)]}, "none"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if place % 5 == 0 else pytest.mark.slow) for place, case in enumerate(CASES)]
)
def test_answer(folder: Path, site: Apart, case: str) -> None:
    others, outcome = CASES[case]
    with serving(Honest(LETTER, **others), folder / "server") as port:
        told, peak, seconds = site.asks(port, largest=8 * MB)
    print(f"{case}: {told}; {peak / MB:.0f} MiB, {seconds:.1f} s")
    assert outcome in told
    assert len(told) < 300
    assert peak < 64 * MB
    assert seconds < 40


@pytest.mark.parametrize("kind", ["round", "plan"])
def test_letter_beyond_the_limit_is_not_fetched(folder: Path, site: Apart, kind: str) -> None:
    server = Honest(random.Random(0).randbytes(40 * MB), kind)
    with serving(server, folder / "server") as port:
        told, peak, _ = site.asks(port, largest=12 * MB)
        assert told == f"TooLarge: a letter of more than {12 * MB} bytes, and the site's owner allows no more"
        assert server.asked.count("pull-object") == 3  # of 5 MiB
        assert peak < 64 * MB
        told, peak, _ = site.asks(port, largest=40 * MB)
        assert told == f"letter of {40 * MB}"
        assert peak < 2 * 40 * MB


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 2 * PART])
def test_letter_of_any_size_comes_whole(folder: Path, site: Apart, size: int) -> None:
    with serving(Honest(bytes(size)), folder / "server") as port:
        assert site.asks(port, largest=size)[0] == f"letter of {size}"
        assert size == 0 or site.asks(port, largest=size - 1)[0].startswith("TooLarge")


def test_site_tells_of_a_letter_beyond_the_limit_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_sites(tmp_path)
    server = ServerKeys.read(tmp_path / "keys" / "server")
    link = SuperLink(lambda: server.roster, ("127.0.0.1", 0), certificate=server.certificate, key=server.key)

    def small(address: str, key: Any, ca: Path, _: int, **options: Any) -> SuperNode:
        return SuperNode(address, key, ca, 10_000, **options)

    monkeypatch.setattr(site_program, "SuperNode", small)
    link.start()
    parties = Parties(tmp_path, port=link.port)
    try:
        parties.start("north")
        for kind, size in (("round", 10_001), ("plan", 10_001), ("round", 100), ("plan", 100)):
            parties.told.clear()
            while (number := link.send("north", kind, bytes(size), 60.0, 10_000)) is None:
                time.sleep(0.05)
            while (reply := link.reply(number)) is None:
                assert not parties.errors
                time.sleep(0.01)
            reason = Consent.decode(reply).refused if kind == "plan" else Reply.decode(reply).detail
            too_large = "a letter of more than 10000 bytes, and the site's owner allows no more"
            assert (reason == too_large) == (size > 10_000)
            assert (f"not taken: {too_large}" in parties.told) == (size > 10_000)
    finally:
        parties.stop("north")
        link.stop()
    assert parties.errors == {}


@pytest.mark.parametrize("route", ["activate-node", "pull-messages", "pull-object", "push-object"])
@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 2000), marks=pytest.mark.slow)], ids=len)
def test_damaged_answers(folder: Path, route: str, seeds: range) -> None:
    """Bytes of an honest answer that are changed, left out, repeated or cut: a letter, none, or a reason."""
    secret = keys.SiteKeys.read(folder / "north").private_key
    random_ = random.Random()

    def damaged(path: str, body: bytes) -> Iterable[bytes]:
        answer = b"".join(Honest(LETTER)(path, body))
        if path != route:
            return [answer]
        data = bytearray(answer)
        for _ in range(random_.randint(1, 8)):
            at = random_.randrange(len(data))
            choice = random_.randrange(4)
            if choice == 0:
                data[at] = random_.randrange(256)
            elif choice == 1:
                del data[at : at + random_.randint(1, 40)]
            elif choice == 2:
                data[at:at] = data[at : at + random_.randint(1, 40)] * random_.randint(1, 100)
            else:
                data[at:at] = random_.randbytes(random_.randint(1, 40))
            data = data or bytearray(b"x")
        return [bytes(data), b"\0" * random_.randint(0, 3)]

    with serving(ending(damaged, route), None) as port:
        for seed in seeds:
            random_.seed(seed)
            try:
                with SuperNode(f"localhost:{port}", secret, None, 2**20) as node:
                    letter = node.next()
                    if letter is not None:
                        assert len(letter.data) <= 2**20
                        node.answer(letter, b"reply")
            except (TurnedAway, Unreachable, TooLarge):
                pass
            except Exception as error:
                raise AssertionError(f"seed {seed}") from error


def ending(answer: Any, route: str) -> Any:
    """``answer``, after which the connection ends at ``route``: what is missing does not come."""

    def ended(path: str, body: bytes) -> Iterator[bytes]:
        yield from answer(path, body)
        if path == route:
            raise OSError

    return ended
