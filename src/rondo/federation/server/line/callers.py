"""Connections to the server's port, from the moment that they are accepted: how many, for how long, and whose.

A connection costs a file descriptor, and a process without any left can neither write its run nor be reached. Some are
kept for the run. A caller without a key makes room for any other: when all places are taken, the oldest one that has
not proved a key is closed.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

PROMPT = 20.0
"""Seconds in which a caller must prove a key, in which the headers of a further request must come, and each part of a
request's body."""
_HANDSHAKE, _FAREWELL = 10.0, 5.0
"""Seconds for the beginning and the end of TLS."""
_RESERVE = 200
"""File descriptors that connections leave to the run."""
_MOST = 2000
"""Most connections. A site has two."""
_PER_SITE = 8
"""Most connections of one site."""
_PAUSE = 0.05
"""Seconds before the next connection is accepted where there was no descriptor for one."""


def places() -> int:
    """Connections that this process can hold. Its limit of file descriptors is raised to what they need, if allowed."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return _MOST
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST + _RESERVE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return _MOST if soft == resource.RLIM_INFINITY else min(_MOST, max(soft - _RESERVE, soft // 2))


class Caller:
    """Whoever is at the other end of a connection."""

    def __init__(self, callers: Callers, connection: socket.socket, host: str, port: int) -> None:
        self._callers, self._connection = callers, connection
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self.owner = (False, host)
        """Whether a key is proved, and the name of its site; until then the caller's host."""
        self._late = asyncio.get_running_loop().call_later(PROMPT, self.drop)

    def prove(self, site: str) -> None:
        """Note that the caller has the key of ``site``."""
        self._late.cancel()
        if self.owner != (True, site):
            self._callers.move(self, (True, site))

    def drop(self) -> None:
        """Close the connection."""
        with suppress(OSError):  # its other end was faster
            self._connection.shutdown(socket.SHUT_RDWR)
        self.gone()

    def gone(self) -> None:
        """Note that the connection is closed."""
        self._late.cancel()
        self._callers.remove(self)


class Callers:
    """All callers. ``most``: how many there can be."""

    def __init__(self, most: int) -> None:
        self._most, self._per_host = most, max(1, most // 2)
        self._strangers: dict[Caller, None] = {}
        """Callers that have not proved a key, the oldest first."""
        self._of: dict[tuple[bool, str], dict[Caller, None]] = {}
        """Callers by owner, the oldest first."""
        self._count = 0

    def add(self, connection: socket.socket, host: str, port: int) -> Caller | None:
        """A new caller; None where no stranger can make room."""
        of_host = self._of.get((False, host), {})
        if len(of_host) >= self._per_host:
            next(iter(of_host)).drop()
        elif self._count >= self._most and not self.drop_stranger():
            return None
        caller = Caller(self, connection, host, port)
        self._strangers[caller] = None
        self._of.setdefault(caller.owner, {})[caller] = None
        self._count += 1
        return caller

    def drop_stranger(self) -> bool:
        """Close the oldest connection that has not proved a key. False: there is none."""
        oldest = next(iter(self._strangers), None)
        if oldest is not None:
            oldest.drop()
        return oldest is not None

    def move(self, caller: Caller, owner: tuple[bool, str]) -> None:
        """Note whose connection it is."""
        if not self.remove(caller):
            return
        caller.owner = owner
        of_site = self._of.setdefault(owner, {})
        of_site[caller] = None
        self._count += 1
        if len(of_site) > _PER_SITE:
            next(iter(of_site)).drop()

    def remove(self, caller: Caller) -> bool:
        """Forget a caller. False: it was forgotten already."""
        of_owner = self._of.get(caller.owner, {})
        if caller not in of_owner:
            return False
        del of_owner[caller]
        if not of_owner:
            del self._of[caller.owner]
        self._strangers.pop(caller, None)
        self._count -= 1
        return True


class CallerServer(uvicorn.Server):
    """Uvicorn's server, which accepts connections by the rules of :class:`Callers`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._accepting: list[asyncio.Task[None]] = []
        self._callers: Callers

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve on ``sockets``."""
        await super().startup(sockets=[])  # it would accept without limit
        self._callers = Callers(places())
        for listening in sockets or ():
            listening.setblocking(False)
            self._accepting.append(asyncio.create_task(self._accept(listening)))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop serving."""
        for task in self._accepting:
            task.cancel()
        await super().shutdown(sockets)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        greeted: set[asyncio.Task[None]] = set()
        while True:
            try:
                connection, (host, port, *_) = await loop.sock_accept(listening)
            except OSError:  # no descriptor is left, or the caller is gone
                self._callers.drop_stranger()
                await asyncio.sleep(_PAUSE)
                continue
            caller = self._callers.add(connection, host, port)
            if caller is None:
                connection.close()
                continue
            task = asyncio.create_task(self._greet(connection, caller))
            greeted.add(task)
            task.add_done_callback(greeted.discard)

    async def _greet(self, connection: socket.socket, caller: Caller) -> None:
        """Begin to serve a connection."""
        config = self.config
        tls: dict[str, Any] = {}
        if config.ssl is not None:
            tls = {"ssl": config.ssl, "ssl_handshake_timeout": _HANDSHAKE, "ssl_shutdown_timeout": _FAREWELL}

        def protocol() -> Prompt:
            return Prompt(config, self.server_state, {"caller": caller})

        try:
            await asyncio.get_running_loop().connect_accepted_socket(protocol, connection, **tls)
        except (OSError, ssl.SSLError):
            caller.gone()


class Prompt(H11Protocol):
    """HTTP in which the headers of a request must come within :data:`PROMPT`: of the first one since the connection was
    made, of any other since its first byte."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """See :class:`asyncio.Protocol`."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """See :class:`asyncio.Protocol`."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """See :class:`asyncio.Protocol`."""
        self._forget()
        self.app_state["caller"].gone()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:  # the headers are there
            self._forget()
        elif self._late is None:
            self._late = self.loop.call_later(PROMPT, self.transport.abort)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
        self._late = None
