"""Connections without a key: they cost the server neither its descriptors nor its sites."""

from __future__ import annotations

import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from intruder import line
from parties import SITES
from test_processes import Processes, folder, processes  # noqa: F401

from rondo.federation.server.line import callers
from rondo.federation.server.line.callers import Callers


@pytest.fixture
def descriptors() -> Iterator[None]:
    """Enough of them for this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip(f"this process may have {hard} file descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3000), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def strangers(port: int, count: int, first: bytes = b"") -> list[socket.socket]:
    """Connections that say ``first`` and no more."""
    connections = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port), 20)
        with suppress(OSError):
            connection.sendall(first)
        connections.append(connection)
    return connections


def closed(connection: socket.socket) -> bool:
    """Whether the other end has closed a connection."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("first", [b"", b"\x16\x03\x01\x02\x00"], ids=["silent", "half of a TLS greeting"])
def test_run_goes_on_among_1300_strangers(
    processes: Processes,  # noqa: F811
    descriptors: None,
    first: bytes,
) -> None:
    """They come before the sites and again and again while the run lasts. The server has 1024 descriptors."""
    processes.serve(preexec_fn=partial(resource.setrlimit, resource.RLIMIT_NOFILE, (1024, 1024)))
    limits = Path(f"/proc/{processes.running['server'].pid}/limits").read_text()
    assert [x.split()[3:5] for x in limits.splitlines() if x.startswith("Max open files")] == [["1024", "1024"]]
    held, over = [strangers(processes.port, 1300, first)], threading.Event()

    def flood() -> None:
        while not over.wait(1.0):
            with suppress(OSError):
                for connection in held[0]:
                    if closed(connection):
                        connection.close()
                held[0] = [c for c in held[0] if c.fileno() >= 0]
                held[0] += strangers(processes.port, 1300 - len(held[0]), first)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        for name in SITES:
            processes.site(name, None, "--wait", "60")
        processes.end_equal()
    finally:
        over.set()
        thread.join()
        for connection in held[0]:
            connection.close()
    assert "Traceback" not in processes.log("server")


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "PROMPT", 2.0)
    monkeypatch.setattr(callers, "_HANDSHAKE", 1.0)


def gone_within(connection: socket.socket, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if closed(connection):
            return True
        time.sleep(0.05)
    return False


def test_half_open_tls_goes_in_seconds(prompt: None, tmp_path: Path) -> None:
    with line(tmp_path / "keys") as link:
        (half,) = strangers(link.link.port, 1, b"\x16\x03\x01\x02\x00")
        assert not closed(half)
        assert gone_within(half, 1.9)


@pytest.mark.slow
def test_tls_without_a_request_goes_in_seconds(prompt: None, tmp_path: Path) -> None:
    with line(tmp_path / "keys") as link:
        context = ssl.create_default_context(cafile=str(link.folder / "server" / "ca.crt"))
        plain = socket.create_connection(("127.0.0.1", link.link.port), 20)
        connection = context.wrap_socket(plain, server_hostname="localhost")
        connection.settimeout(4)
        began = time.monotonic()
        with suppress(ConnectionError, ssl.SSLError):
            assert connection.recv(1) == b""
        assert time.monotonic() - began < 3


def test_site_gets_in_where_strangers_have_all_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(callers, "places", lambda: 20)
    with line(tmp_path / "keys") as link:
        north = link.site("north")
        assert north.connect().status_code == 200
        held = strangers(link.link.port, 60)
        assert link.site("south").connect().status_code == 200
        assert north.post("send-node-heartbeat", b"").status_code == 401, "a connection that proved its key was closed"
        assert sum(gone_within(connection, 0.5) for connection in held[:40]) == 40
        for connection in held:
            connection.close()
        assert link.site("north").connect().status_code == 200


def test_server_without_descriptors_lives_on(descriptors: None, tmp_path: Path) -> None:
    """Here something else has taken them all: the limit is set to what this process uses now."""
    with line(tmp_path / "keys") as link:
        held = strangers(link.link.port, 30)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        waiting = [socket.socket() for _ in range(5)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            for connection in waiting:
                connection.connect(("127.0.0.1", link.link.port))
            time.sleep(0.5)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert link.site("north").connect().status_code == 200
        for connection in held + waiting:
            connection.close()


def test_one_site_cannot_take_all_places(tmp_path: Path) -> None:
    with line(tmp_path / "keys") as link:
        north = [link.site("north") for _ in range(12)]
        for site in north:
            assert site.connect().status_code == 200
        taken: Callers = link.link._server._callers  # type: ignore[attr-defined]
        assert len(taken._of[True, "north"]) <= callers._PER_SITE
        assert link.site("south").connect().status_code == 200


def test_callers_are_forgotten(tmp_path: Path) -> None:
    with line(tmp_path / "keys") as link:
        for connection in strangers(link.link.port, 50, b"\x16"):
            connection.close()
        north = link.site("north")
        assert north.connect().status_code == 200
        north.http.close()
        taken: Callers = link.link._server._callers  # type: ignore[attr-defined]
        end = time.monotonic() + 10
        while taken._count:
            assert time.monotonic() < end, vars(taken)
            time.sleep(0.02)
        assert not taken._of
        assert not taken._strangers


def test_limit_of_descriptors_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [(1024, 20_000)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    assert callers.places() == 2000
    assert limits[-1] == (2200, 20_000)
    limits = [(256, 1024)]
    assert callers.places() == 824
    assert limits[-1] == (1024, 1024)
    limits = [(100_000, 100_000)]
    assert callers.places() == 2000
    assert len(limits) == 1
    limits = [(128, 128)]
    assert callers.places() == 64
