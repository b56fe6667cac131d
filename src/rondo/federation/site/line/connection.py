"""HTTP between a site and its server, straight or through a proxy.

A server may answer anything, so bytes and time are counted below HTTP, before anything is unpacked: no head and no body
gets more of either than its request allows, and a byte every few seconds is no answer.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import h11
import httpcore

from rondo.errors import ConfigError, StopRequested
from rondo.federation.letter import PORT
from rondo.federation.signature import NOTICE

_HEAD = 2**17
"""Bytes of the largest head of an answer. A proxy's is counted to it."""
_PATIENCE, _SLOWEST = 60.0, 1024
"""An answer may take so many seconds, and one more per so many bytes of it and of its question."""
_PIECE = 2**16
"""Bytes that are sent at once."""


class Unreachable(Exception):
    """The server cannot be reached now. It may come back."""


class NotTheServer(Unreachable):
    """Another program answers at its address."""


class TurnedAway(Exception):
    """The server turns this site away, with its reason."""


class Connection:
    """A connection to the server at ``host`` and ``port``, which is made when it is needed and again when it is lost.

    ``ca``: file with the certificate of the authority that vouches for the server; None connects without TLS, and
    without a proxy.
    ``timeout``: seconds in which it must connect, and in which something of an answer must come.

    One thread uses it. Raises :class:`~rondo.errors.ConfigError` for a proxy that is not spoken to.
    """

    def __init__(self, host: str, port: int, ca: Path | None, timeout: float = 30.0) -> None:
        self.proxy = None if ca is None else proxy_to(host, port)
        self._meter = _Meter()
        self._address = (b"http" if ca is None else b"https", host.encode("idna"), port)
        name = f"[{host}]" if ":" in host else host
        self._host = f"{name}:{port}"
        self._timeout = dict.fromkeys(("connect", "read", "write", "pool"), timeout)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if ca is not None:
            context.load_verify_locations(ca)
        self._pool = _pool(self.proxy, context, _Backend(self._meter))

    def reach(self) -> None:
        """Find out whether a server answers there. Raises :class:`Unreachable`."""
        response = self._answer("GET", "/", {}, b"", 2**14)
        if response.status >= 500:
            raise Unreachable(f"it answers {response.status}{self._through}")

    def post(self, path: str, body: bytes, headers: Mapping[str, str], largest: int) -> tuple[bytes, str]:
        """The answer to ``body``, at most ``largest`` bytes, and its header ``rondo-notice``. Raises
        :class:`Unreachable` and :class:`TurnedAway`."""
        response = self._answer("POST", path, headers, body, largest)
        encoding = _header(response, b"content-encoding").lower()
        if encoding not in ("", "identity"):
            raise Unreachable(f"its answer is packed ({encoding[:_LINE]}), which no site asks for")
        if response.status == 200:
            return response.content, _header(response, NOTICE.encode())
        reason = _reason(response.content)
        if 400 <= response.status < 500 and reason is not None:
            raise TurnedAway(reason)
        raise Unreachable(f"it answers {response.status}{self._through}")

    def close(self) -> None:
        """Close it."""
        self._pool.close()

    @property
    def _through(self) -> str:
        """The way, after a reason."""
        return "" if self.proxy is None else f", through the proxy {self.proxy}"

    def _answer(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, largest: int
    ) -> httpcore.Response:
        scheme, host, port = self._address
        url = httpcore.URL(scheme=scheme, host=host, port=port, target=path)
        sent = {"host": self._host, "accept-encoding": "identity", **headers}.items()
        self._meter.begin(_HEAD + largest)
        try:
            return self._pool.request(
                method,
                url,
                headers=list[tuple[bytes | str, bytes | str]](sent),
                content=body,
                extensions={"timeout": self._timeout},
            )
        except Unreachable as slow_or_large:
            raise Unreachable(f"{slow_or_large}{self._through}") from None
        except _FAULTS as error:
            raise self._unreachable(error) from None

    def _unreachable(self, error: Exception) -> Unreachable:
        """The reason of ``error``, in which httpcore hides the socket's own."""
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__
        if isinstance(error, httpcore.TimeoutException):
            return Unreachable(f"{_LATE}{self._through}")
        if isinstance(error, httpcore.ProxyError):
            return Unreachable(f"the proxy answers {str(error)[:_LINE]}{self._through}")
        if isinstance(cause, ssl.SSLCertVerificationError):
            return NotTheServer(f"its certificate is not accepted: {cause.verify_message}{self._through}")
        if isinstance(cause, ssl.SSLEOFError):
            return Unreachable(f"the connection is closed{self._through}")
        if isinstance(cause, ssl.SSLError) and isinstance(error, httpcore.ConnectError):
            return NotTheServer(f"it does not speak TLS ({cause.reason}){self._through}")
        reason = getattr(cause, "strerror", None) or str(cause or error) or type(error).__name__
        return Unreachable(f"{reason[:_LINE]}{self._through}")


_FAULTS = (
    httpcore.TimeoutException,
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.ProxyError,
    h11.ProtocolError,
    OSError,
    ValueError,
)
"""Whatever a server can make these libraries raise."""
_LATE = "it does not answer in time"
_LINE = 200
"""Characters of a reason that is not ours."""


def _pool(proxy: Proxy | None, context: ssl.SSLContext, backend: httpcore.NetworkBackend) -> httpcore.ConnectionPool:
    options: dict[str, Any] = {
        "ssl_context": context,
        "max_connections": 1,
        "keepalive_expiry": 25.0,
        "network_backend": backend,
    }
    if proxy is None:
        return httpcore.ConnectionPool(**options)
    url = httpcore.URL(scheme=b"http", host=proxy.host.encode(), port=proxy.port, target=b"/")
    login = None if proxy.login is None else (proxy.login[0].encode(), proxy.login[1].encode())
    return httpcore.HTTPProxy(url, login, **options)


def _header(response: httpcore.Response, name: bytes) -> str:
    """A header of ``response``; empty without it."""
    values = [value for key, value in response.headers if key.lower() == name]
    return b", ".join(values).decode("latin-1").strip()


def _reason(body: bytes) -> str | None:
    """A Rondo server's reason in ``body``; None in that of another program."""
    try:
        content = json.loads(body[: 2**16])
        reason = content.get("detail") or content.get("message")
    except (ValueError, AttributeError, RecursionError):
        return None
    return reason[:_LINE] if isinstance(reason, str) else None


class _Meter:
    """Bytes and time that the answer to a question may take. Raises :class:`Unreachable` beyond either."""

    def begin(self, largest: int) -> None:
        """A question, whose answer has at most ``largest`` bytes."""
        self._began, self._moved, self._largest, self._received = time.monotonic(), 0, largest, 0

    def left(self, timeout: float | None) -> float:
        """Seconds for the next bytes, at most ``timeout``."""
        left = self._began + _PATIENCE + self._moved / _SLOWEST - time.monotonic()
        if left <= 0:
            raise Unreachable(_LATE)
        return left if timeout is None else min(left, timeout)

    def sent(self, count: int) -> None:
        """``count`` bytes were sent."""
        self._moved += count

    def came(self, count: int) -> None:
        """``count`` bytes came."""
        self._moved += count
        self._received += count
        if self._received > self._largest:
            raise Unreachable(f"its answer has more than {self._largest} bytes")


class _Stream(httpcore.NetworkStream):
    """A stream whose bytes a meter counts."""

    def __init__(self, inner: httpcore.NetworkStream, meter: _Meter) -> None:
        self._inner, self._meter = inner, meter

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = self._inner.read(max_bytes, self._meter.left(timeout))
        self._meter.came(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for start in range(0, len(buffer), _PIECE):
            piece = buffer[start : start + _PIECE]
            self._inner.write(piece, self._meter.left(timeout))
            self._meter.sent(len(piece))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._inner.start_tls(ssl_context, server_hostname, self._meter.left(timeout)), self._meter)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    """Connections whose bytes a meter counts."""

    def __init__(self, meter: _Meter) -> None:
        self._inner, self._meter = httpcore.SyncBackend(), meter

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        stream = self._inner.connect_tcp(host, port, self._meter.left(timeout), local_address, socket_options)
        return _Stream(stream, self._meter)


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy. It is asked for a tunnel (CONNECT), in which TLS is between site and server."""

    host: str
    port: int
    login: tuple[str, str] | None = field(default=None, repr=False)
    """User and password."""

    def __str__(self) -> str:
        """Its address, without user and password."""
        return f"{self.host}:{self.port}"


def proxy_to(host: str, port: int) -> Proxy | None:
    """The proxy for connections to ``host`` and ``port``, by HTTPS_PROXY, ALL_PROXY and NO_PROXY; None for a straight
    one. Raises :class:`ConfigError` for a proxy that is not spoken to: one over SOCKS, and one that is itself behind
    TLS."""
    proxies = getproxies()
    scheme = next((scheme for scheme in ("https", "all") if proxies.get(scheme)), None)
    if scheme is None or proxy_bypass(f"{host}:{port}", proxies) or proxy_bypass(host, proxies):
        return None
    name = f"{scheme}_proxy"
    if not os.environ.get(name):
        name = next(key for key in os.environ if key.lower() == name)
    address = proxies[scheme] if "://" in proxies[scheme] else f"http://{proxies[scheme]}"
    try:
        parts = urlsplit(address)
        proxy, proxy_port = parts.hostname or "", parts.port or _PORT
        proxy.encode("ascii")
    except ValueError:
        proxy = ""
    if not proxy:
        raise ConfigError.at(name, f"is not the address of a proxy: {_REMEDY}")
    if parts.scheme.lower() != "http":
        where = parts.netloc.rpartition("@")[2]
        raise ConfigError.at(name, f"the proxy {where} speaks {parts.scheme.lower()}, and a site HTTP: {_REMEDY}")
    login = None if parts.username is None else (unquote(parts.username), unquote(parts.password or ""))
    return Proxy(proxy, proxy_port, login)


_PORT = 80
"""The port of an HTTP proxy whose address names none."""
_REMEDY = "set it to http://HOST:PORT of a proxy that gives tunnels (CONNECT), or name the server in NO_PROXY"


AGAIN = 2.0
"""Seconds between attempts to connect."""
_TIMEOUT = 4.0
"""Seconds in which a server must accept a first connection."""


def address_of(server: str) -> tuple[str, int]:
    """Host and port. Raises :class:`ConfigError`."""
    alone = server.count(":") != 1 and "]:" not in server
    host, _, port = (server, "", str(PORT)) if alone else server.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16 or not _is_name(host):
        raise ConfigError.at("--server", f"{server!r} is not an address: give HOST or HOST:PORT")
    return host, int(port)


def _is_name(host: str) -> bool:
    """Whether a host can have this name."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return True


def await_server(
    host: str, port: int, ca: Path | None, seconds: float, told: Callable[[str], None], stop: threading.Event
) -> None:
    """Wait at most ``seconds`` until the server answers at this address, by the way that all later letters go. Raises
    :class:`ConfigError` with the reason if it does not, or is not the server that ``ca`` vouches for; and
    :class:`StopRequested`."""
    end, waits = time.monotonic() + seconds, False
    connection = Connection(host, port, ca, _TIMEOUT)
    if connection.proxy is not None:
        told(f"going to {host}:{port} through the proxy {connection.proxy}")
    try:
        while True:
            try:
                return connection.reach()
            except NotTheServer as other:
                remedy = "ask the server's owner for the right ca.crt and host; a server with --insecure has no TLS"
                raise ConfigError.at("--server", f"{host}:{port}: {other}; {remedy}") from None
            except Unreachable as unreachable:
                if time.monotonic() >= end:
                    remedy = "mend the address, or wait for it by --wait"
                    message = f"{host}:{port} cannot be reached: {unreachable}; {remedy}"
                    raise ConfigError.at("--server", message) from None
            if not waits:
                told(f"waiting for {host}:{port}")
            waits = True
            if stop.wait(AGAIN):
                raise StopRequested
    finally:
        connection.close()
