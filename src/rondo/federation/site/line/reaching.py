"""The server's address, and the first time that a site reaches it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

from rondo.errors import ConfigError, StopRequested
from rondo.federation.letter import PORT
from rondo.federation.site.line.connection import Connection, NotTheServer, Unreachable

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
