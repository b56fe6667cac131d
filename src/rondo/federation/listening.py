"""The address of a federation's server, and the line that it opens there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rondo.errors import ConfigError, Problem
from rondo.federation.keys import ServerKeys
from rondo.federation.roster import FILE, Roster
from rondo.federation.superlink import SuperLink

PORT = 9092
"""The port of Flower's SuperLink for SuperNodes."""


@dataclass(frozen=True)
class Listening:
    """Address, keys and patience of a server.

    - ``keys``: its folder of keys.
    - ``host``, ``port``: its address; port 0 is any free one.
    - ``insecure``: without TLS, on the loopback address only.
    - ``wait``: seconds that it waits for all clients before the first round, or for enough of them.
    - ``patience``: seconds that a round waits for a site that is not connected any more.
    """

    keys: Path
    host: str = "0.0.0.0"
    port: int = PORT
    insecure: bool = False
    wait: float = 600.0
    patience: float = 60.0

    def check(self) -> None:
        """Raise :class:`ConfigError` for times that are none, and where anybody could read along."""
        times = (("--wait", self.wait), ("--patience", self.patience))
        if problems := [Problem(option, r) for option, time in times if (r := no_seconds(time)) is not None]:
            raise ConfigError(problems)
        if self.insecure and self.host not in ("127.0.0.1", "::1", "localhost"):
            message = f"without TLS only the loopback address is served, not {self.host}: set --listen 127.0.0.1"
            raise ConfigError.at("--insecure", message)


def no_seconds(time: float) -> str | None:
    """The reason why ``time`` is no number of seconds to wait; None if it is one."""
    return None if 0 <= time < math.inf else f"should be a number of seconds, 0 or more, got {time}"


@contextmanager
def link(listening: Listening, told: Callable[[str], None]) -> Iterator[tuple[SuperLink, dict[str, str]]]:
    """A SuperLink that serves, and the site of every client."""
    listening.check()
    keys = ServerKeys.read(listening.keys)
    tls = {} if listening.insecure else {"certificate": keys.certificate, "key": keys.key}
    clients = {client: site.name for site in keys.roster.sites for client in site.clients}
    if not clients:
        raise ConfigError.at(str(listening.keys), "its roster has no site: add one by rondo federate keys make")
    line = SuperLink(_Watched(listening.keys / FILE).roster, (listening.host, listening.port), **tls, told=told)
    try:
        line.start()
        told(f"listening on {listening.host}:{line.port} for {len(clients)} clients")
        yield line, clients
    finally:
        line.stop()


class _Watched:
    """The roster in a file, read again when the file has changed. A broken file leaves the last one in force."""

    def __init__(self, path: Path) -> None:
        self._path, self._stamp, self._roster = path, -1, Roster(())
        self.roster()

    def roster(self) -> Roster:
        """The roster as it is now."""
        try:
            stamp = self._path.stat().st_mtime_ns
            if stamp != self._stamp:
                self._roster, self._stamp = Roster.read(self._path), stamp
        except (OSError, ConfigError):
            if self._stamp < 0:
                raise
        return self._roster
