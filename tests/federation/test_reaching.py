"""A server that a site reaches, does not reach yet, or does not reach any more: one clear line, and another attempt."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
from hostile_server import Honest, http, serving
from parties import Parties, write_sites

from rondo.errors import ConfigError, StopRequested
from rondo.federation.identity import keys
from rondo.federation.identity.keys import ServerKeys
from rondo.federation.server.line.superlink import SuperLink
from rondo.federation.site import run as site
from rondo.federation.site.line import connection
from rondo.federation.site.line.connection import address_of, await_server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys of a server and its sites, and of another one in ``other``."""
    path = tmp_path_factory.mktemp("reaching")
    write_sites(path)
    keys.make(["localhost"], ["north"], path / "other", days=10, clients={})
    return path


def reach(folder: Path, port: int, host: str = "localhost", wait: float = 0.0, tls: bool = True) -> list[str]:
    told: list[str] = []
    ca = folder / "keys" / "server" / "ca.crt" if tls else None
    await_server(host, port, ca, wait, told.append, threading.Event())
    return told


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("example.org", ("example.org", 9092)),
        ("example.org:1", ("example.org", 1)),
        ("127.0.0.1:65535", ("127.0.0.1", 65535)),
        ("::1", ("::1", 9092)),
        ("[::1]", ("::1", 9092)),
        ("[::1]:5", ("::1", 5)),
        ("bücher.example", ("bücher.example", 9092)),
    ],
)
def test_address(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize(
    "text",
    ["", ":1", "host:", "host:0", "host:65536", "host:x", "host:-1", "a..b", "a" * 64, "[]", "[::1]:", "[::1]:x"],
)
def test_address_that_is_none(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an address: give HOST or HOST:PORT"):
        address_of(text)


@pytest.mark.parametrize("answer", [http(b'{"detail": "Not Found"}', "404 Not Found"), http()])
def test_server_that_answers(folder: Path, answer: bytes) -> None:
    with serving(lambda *_: [answer], folder / "keys" / "server") as port:
        assert reach(folder, port) == []


def silent(*_: object) -> Iterable[bytes]:
    time.sleep(2)
    return []


@pytest.mark.parametrize(
    ("who", "answer", "reason"),
    [
        ("other", [http()], "its certificate is not accepted: unable to get local issuer certificate"),
        (None, [http()], "it does not speak TLS ("),
        ("keys", [b"SSH-2.0-OpenSSH\r\n\r\n"], "cannot be reached: illegal status line"),
        ("keys", [http(b"", "503 Busy")], "cannot be reached: it answers 503"),
        ("keys", None, "cannot be reached: it does not answer in time"),
    ],
    ids=["another certificate", "no TLS", "no HTTP", "busy", "silent"],
)
def test_server_that_is_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch, who: str | None, answer: list[bytes] | None, reason: str
) -> None:
    monkeypatch.setattr(connection, "_TIMEOUT", 0.5)
    answers = silent if answer is None else lambda *_: answer
    own = None if who is None else folder / who / "server"
    with serving(answers, own) as port, pytest.raises(ConfigError) as caught:
        reach(folder, port)
    (problem,) = caught.value.problems
    assert problem.path == "--server"
    assert problem.message.startswith(f"localhost:{port}")
    assert reason in problem.message
    assert "\n" not in problem.message


def test_server_under_another_name(folder: Path) -> None:
    reason = r"its certificate is not accepted: IP address mismatch.*ask the server's owner for the right ca\.crt"
    with serving(Honest(), folder / "keys" / "server") as port, pytest.raises(ConfigError, match=reason):
        reach(folder, port, "127.0.0.1")


def test_site_without_tls_at_a_server_with_it(folder: Path) -> None:
    with serving(Honest(), folder / "keys" / "server") as port, pytest.raises(ConfigError, match="cannot be reached"):
        reach(folder, port, tls=False)


@pytest.mark.parametrize("host", ["localhost", "no-such-host.invalid"])
def test_server_that_is_not_there(folder: Path, host: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be reached: [^;\[]+; mend the address, or wait for it by --wait"):
        reach(folder, 1, host)


def test_server_that_comes_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "AGAIN", 0.05)
    count = 0

    def busy_twice(*_: object) -> list[bytes]:
        nonlocal count
        count += 1
        return [http(b"", "502 Bad Gateway" if count < 3 else "404 Not Found")]

    with serving(busy_twice, folder / "keys" / "server") as port:
        assert reach(folder, port, wait=20) == [f"waiting for localhost:{port}"]


def test_waiting_is_stopped(folder: Path) -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(StopRequested):
        await_server("localhost", 1, None, 600, lambda _: None, stop)


# --- a server that was there ----------------------------------------------------------------------------------------


def linked(folder: Path, port: int) -> SuperLink:
    server = ServerKeys.read(folder / "keys" / "server")
    return SuperLink(lambda: server.roster, ("127.0.0.1", port), certificate=server.certificate, key=server.key)


def nothing(_: Path, port: int) -> AbstractContextManager[object]:
    return nullcontext()


def other(*pieces: bytes, certificate: str | None = "keys") -> Callable[[Path, int], AbstractContextManager[object]]:
    def started(folder: Path, port: int) -> AbstractContextManager[object]:
        own = None if certificate is None else folder / certificate / "server"
        return serving(lambda *_: pieces, own, port)

    return started


@pytest.mark.parametrize(
    ("instead", "reason"),
    [
        (nothing, "Connection refused"),
        (other(http(b"<html>", "502 Bad Gateway")), "it answers 502"),
        (other(http(b"<html>", "404 Not Found")), "it answers 404"),
        (other(http(b"<html>")), "its answer is not from a Rondo server"),
        (other(http(b"", "301 Moved", "location: https://localhost/")), "it answers 301"),
        (other(b"220 mail.example ESMTP\r\n\r\n"), "illegal status line"),
        (other(), "it does not answer in time"),
        (other(http(), certificate="other"), "its certificate is not accepted"),
        (other(http(), certificate=None), "it does not speak TLS"),
    ],
    ids=["nothing", "gateway", "page", "page of 200", "redirect", "mail", "silence", "certificate", "no TLS"],
)
@pytest.mark.slow
def test_server_is_replaced_and_comes_back(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    instead: Callable[[Path, int], AbstractContextManager[object]],
    reason: str,
) -> None:
    monkeypatch.setattr(site, "AGAIN", 0.05)
    monkeypatch.setattr("rondo.federation.site.line.connection._PATIENCE", 3.0)
    first = linked(folder, 0)
    first.start()
    told: list[str] = []
    parties = Parties(folder, port=first.port, state=tmp_path, told=told)
    address = f"localhost:{first.port}"
    try:
        parties.start("north")
        until(told, f"connected to {address} as north", parties)
        first.stop()
        with instead(folder, first.port):
            until(told, reason, parties)
        second = linked(folder, first.port)
        second.start()
        try:
            until(told, f"connected to {address} as north", parties, 2)
        finally:
            parties.stop("north")
            second.stop()
    finally:
        first.stop()
    assert parties.errors == {}
    expected = ("connected to", f"the connection to {address} is lost (")
    assert [line for line in told if not line.startswith(expected)] == [], told
    assert len(told) < 8, told


def until(told: list[str], text: str, parties: Parties, count: int = 1) -> None:
    end = time.monotonic() + 30
    while sum(text in line for line in told) < count:
        assert time.monotonic() < end, told
        assert not parties.errors, parties.errors
        time.sleep(0.02)


def test_free_port_is_refused() -> None:
    """What ``nothing`` stands on."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", 1))
