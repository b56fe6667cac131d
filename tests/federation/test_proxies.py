"""The way to the server through the proxy of the environment: the same for the first connection and for letters."""

from __future__ import annotations

import re
import socket
import ssl
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from intruder import Line
from typer.testing import CliRunner

from rondo.cli.app import app
from rondo.errors import ConfigError
from rondo.federation.identity import keys
from rondo.federation.identity.keys import SiteKeys
from rondo.federation.site.line.connection import Unreachable, await_server
from rondo.federation.site.line.supernode import SuperNode

LETTER = b"a letter that no proxy reads"


@dataclass
class Proxy:
    """A proxy that gives tunnels. ``answer``: bytes in place of the tunnel. ``ends_tls``: a folder with the certificate
    and the key of a proxy that reads along."""

    answer: bytes = b""
    ends_tls: Path | None = None
    port: int = 0
    asked: list[str] = field(default_factory=list)
    """The head of every request."""
    seen: bytearray = field(default_factory=bytearray)
    """Bytes from sites to the server."""

    def serve(self, listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._tunnel, args=(listening.accept()[0],), daemon=True).start()

    def _tunnel(self, side: socket.socket) -> None:
        with suppress(OSError), side:
            head = b""
            while b"\r\n\r\n" not in head:
                head += side.recv(1)
            self.asked.append(head.decode())
            if self.answer:
                while True:
                    side.sendall(self.answer)
                    if len(self.answer) < 10_000:
                        return
            host, _, port = head.split()[1].decode().rpartition(":")
            with socket.create_connection((host, int(port))) as other:
                side.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                if self.ends_tls is not None:
                    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
                    context.load_cert_chain(self.ends_tls / "server.crt", self.ends_tls / "server.key")
                    context.wrap_socket(side, server_side=True)
                threading.Thread(target=self._pump, args=(other, side, bytearray()), daemon=True).start()
                self._pump(side, other, self.seen)

    def _pump(self, a: socket.socket, b: socket.socket, seen: bytearray) -> None:
        with suppress(OSError):
            while data := a.recv(2**16):
                seen += data
                b.sendall(data)
            b.shutdown(socket.SHUT_RDWR)


@contextmanager
def running(proxy: Proxy) -> Iterator[Proxy]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        proxy.port = listening.getsockname()[1]
        threading.Thread(target=proxy.serve, args=(listening,), daemon=True).start()
        yield proxy
        listening.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with running(Proxy()) as made:
        yield made


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("https_proxy", "http_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def reached(link: Line) -> list[str]:
    """What a site's owner is told when it reaches the server and gets a letter."""
    told: list[str] = []
    keys = SiteKeys.read(link.folder / "north")
    await_server("localhost", link.link.port, keys.ca, 0, told.append, threading.Event())
    with SuperNode(f"localhost:{link.link.port}", keys.private_key, keys.ca) as node:
        assert link.link.send("north", "round", LETTER, 60.0, 1000) is not None
        letter = node.next()
        assert letter is not None
        assert letter.data == LETTER
        node.answer(letter, b"reply")
    return told


def refusal(link: Line) -> str:
    """The reason why a site's owner does not reach the server."""
    keys = SiteKeys.read(link.folder / "north")
    with pytest.raises(ConfigError) as caught:
        await_server("localhost", link.link.port, keys.ca, 0, lambda _: None, threading.Event())
    (problem,) = caught.value.problems
    assert problem.path == "--server"
    return problem.message


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])
def test_all_connections_go_through_the_proxy(
    link: Line, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
    assert reached(link) == [f"going to localhost:{link.link.port} through the proxy 127.0.0.1:{proxy.port}"]
    assert len(proxy.asked) == 2, "one to reach the server, and one for letters"
    assert [head for head in proxy.asked if not head.startswith(f"CONNECT localhost:{link.link.port} ")] == []
    assert LETTER not in proxy.seen
    assert b"/v1/fleet" not in proxy.seen, "TLS is between site and server"


def test_login_is_the_proxys_alone(link: Line, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://anna:s%40cret@127.0.0.1:{proxy.port}/")
    told = reached(link)
    login = b64encode(b"anna:s@cret").decode()
    assert [head for head in proxy.asked if f"Proxy-Authorization: Basic {login}" not in head] == []
    assert "anna" not in str(told)
    proxy.answer = b"HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n"
    assert "cret" not in refusal(link)


@pytest.mark.parametrize("value", ["localhost", "LOCALHOST", "example.org, localhost", "*", "localhost:{port}"])
def test_server_in_no_proxy(link: Line, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
    monkeypatch.setenv("NO_PROXY", value.format(port=link.link.port))
    assert reached(link) == []
    assert proxy.asked == []


def test_other_proxies_are_left_alone(link: Line, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{proxy.port}")
    monkeypatch.setenv("FTP_PROXY", f"http://127.0.0.1:{proxy.port}")
    monkeypatch.setenv("HTTPS_PROXY", "")
    assert reached(link) == []
    assert proxy.asked == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("socks5://anna:secret@10.0.0.1:1080", "the proxy 10.0.0.1:1080 speaks socks5"),
        ("socks5h://10.0.0.1:1080", "the proxy 10.0.0.1:1080 speaks socks5h"),
        ("https://10.0.0.1:3129", "the proxy 10.0.0.1:3129 speaks https"),
        ("ftp://10.0.0.1", "the proxy 10.0.0.1 speaks ftp"),
        ("http://", "is not the address of a proxy"),
        ("http://10.0.0.1:port", "is not the address of a proxy"),
        ("http://10.0.0.1:99999", "is not the address of a proxy"),
        ("http://[::1", "is not the address of a proxy"),
        ("http://prøxy:1", "is not the address of a proxy"),
        (":", "is not the address of a proxy"),
    ],
)
def test_proxy_that_is_not_spoken_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, reason: str) -> None:
    monkeypatch.chdir(tmp_path)
    keys.make(["localhost"], ["north"], tmp_path / "keys", days=10, clients={})
    (tmp_path / "rows.csv").write_text("text,label\nyes,a\nno,b\n")
    (tmp_path / "site.toml").write_text('[rows]\ninputs = ["text"]\nlabels = ["label"]\n')
    monkeypatch.setenv("HTTPS_PROXY", value)
    arguments = ("--server", "localhost:1", "--keys", "keys/north", "--data", "rows.csv")
    result = CliRunner().invoke(app, ["federate", "client", *arguments])
    said = " ".join(result.stderr.split())
    assert result.exit_code == 2, said
    assert f"HTTPS_PROXY: {reason}" in said
    assert said.endswith("or name the server in NO_PROXY")
    assert "secret" not in said


def test_proxy_that_is_not_there(link: Line, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "127.0.0.1:1")
    message = refusal(link)
    assert "cannot be reached: Connection refused, through the proxy 127.0.0.1:1;" in message


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n", "the proxy answers 407 Proxy Authentication Required"),
        (b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 3\r\n\r\nno\n", "the proxy answers 502 Bad Gateway"),
        (b"HTTP/1.1 302 " + b"x" * 5000 + b"\r\n\r\n", "the proxy answers 302 xxx"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "illegal status line"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 10_000, "Receive buffer too long|its answer has more than"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, "its answer has more than"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "the connection is closed|Connection reset by peer"),
    ],
    ids=lambda value: value[:14].decode() if isinstance(value, bytes) else "",
)
def test_proxy_that_gives_no_tunnel(link: Line, monkeypatch: pytest.MonkeyPatch, answer: bytes, reason: str) -> None:
    with running(Proxy(answer)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        message = refusal(link)
        assert re.search(rf"localhost:{link.link.port} cannot be reached: ({reason})", message)
        assert message.count(f"through the proxy 127.0.0.1:{proxy.port}") == 1
        assert len(message) < 500
        site = SiteKeys.read(link.folder / "north")
        node = SuperNode(f"localhost:{link.link.port}", site.private_key, site.ca)
        with pytest.raises(Unreachable, match=reason), node:
            pass


def test_proxy_that_ends_tls(link: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys.make(["localhost"], ["north"], tmp_path / "keys", days=10, clients={})
    with running(Proxy(ends_tls=tmp_path / "keys" / "server")) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.port}")
        message = refusal(link)
    assert "its certificate is not accepted" in message
    assert f"through the proxy 127.0.0.1:{proxy.port}" in message
    assert LETTER not in proxy.seen


def test_connection_without_tls_goes_straight(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is to this machine's own address."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_not_found, args=(listening,), daemon=True).start()
        await_server("localhost", listening.getsockname()[1], None, 0, pytest.fail, threading.Event())


def _not_found(listening: socket.socket) -> None:
    side, _ = listening.accept()
    with side:
        side.recv(1000)
        side.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
