"""The server's end of the line to its sites: Flower's SuperLink, of which only the Fleet API is there.

Flower's own command also opens an API through which anybody who reaches the port can start a run, whose code then
reaches the sites. Here there is one run, and no code travels (docs/dev/adr/0017-flower.md). A site signs
every request with its key.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from rondo.errors import ConfigError
from rondo.federation.identity.roster import Roster
from rondo.federation.server.line.callers import CallerServer
from rondo.federation.server.line.door import Door
from rondo.federation.server.line.fleet import Fleet
from rondo.federation.server.line.links import Links

_KEEP = 30
"""Seconds that a connection without a request stays open: longer than a site keeps it, so that no request meets its
end."""


class SuperLink:
    """A SuperLink on ``address``, for the sites of a roster. It serves from :meth:`start` to :meth:`stop`, in a thread.

    ``certificate``, ``key``: files in PEM; None serves without TLS.
    ``told``: called with a line of text, from another thread, per program that is refused since its site is connected.
    """

    def __init__(
        self,
        roster: Callable[[], Roster],
        address: tuple[str, int],
        *,
        certificate: Path | None = None,
        key: Path | None = None,
        told: Callable[[str], None] = lambda line: None,
    ) -> None:
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # it logs every request
        self._news = threading.Condition()
        self._number = 0
        """The number of replies, and of sites that came or went, up to now."""
        self._links = Links(self._happened)
        self._fleet = Fleet(self._links, told, self._happened)
        self._door = Door(self._fleet.answer, roster)
        self._listening = _listen(*address)
        self.port: int = self._listening.getsockname()[1]
        tls: dict[str, Any] = {"ssl_certfile": certificate, "ssl_keyfile": key} if certificate is not None else {}
        quiet: dict[str, Any] = {"log_level": "critical", "access_log": False, "server_header": False}
        self._server = CallerServer(
            uvicorn.Config(self._door, http="h11", ws="none", lifespan="off", timeout_keep_alive=_KEEP, **quiet, **tls)
        )
        self._thread = threading.Thread(
            target=self._server.run, args=([self._listening],), name="superlink", daemon=True
        )

    def start(self) -> None:
        """Serve. Raises :class:`ConfigError` where certificate or key cannot be used."""
        self._thread.start()
        while not self._server.started:
            if not self._thread.is_alive():
                raise ConfigError.at("--keys", "the certificate cannot be used: make another one", "rondo federate")
            time.sleep(0.01)

    def renew(self, certificate: Path, key: Path) -> None:
        """Show another certificate to whoever connects from now on. Raises :class:`ConfigError`."""
        context = self._server.config.ssl
        if context is not None:
            try:
                context.load_cert_chain(certificate, key)
            except OSError as error:
                raise ConfigError.at("--keys", f"the certificate cannot be used: {error}") from None

    def stop(self) -> None:
        """Stop serving. Letters that are on their way are lost."""
        self._server.should_exit = self._server.force_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        self._listening.close()

    def present(self) -> dict[str, str]:
        """See :class:`~rondo.federation.server.line.site_line.SiteLine`: another time after every restart."""
        there = self._fleet.places.present()
        valid = {name: since for name, (since, key) in there.items() if self._door.valid(key)}
        for name in there.keys() - valid.keys():
            self._fleet.wake(name, letter=False)
        return valid

    def send(self, site: str, kind: str, letter: bytes, seconds: float, largest: int) -> str | None:
        """See :class:`~rondo.federation.server.line.site_line.SiteLine`. None for a site that was never there."""
        if site not in self._fleet.places.present():
            return None
        number = self._links.post(site, kind, letter, seconds, largest)
        self._fleet.wake(site)
        return number

    def wait(self, after: int, seconds: float) -> int:
        """See :class:`~rondo.federation.server.line.site_line.SiteLine`. A site that falls silent goes unnoticed."""
        with self._news:
            self._news.wait_for(lambda: self._number != after, seconds)
            return self._number

    def _happened(self) -> None:
        with self._news:
            self._number += 1
            self._news.notify_all()

    def reply(self, number: str) -> bytes | None:
        """See :class:`~rondo.federation.server.line.site_line.SiteLine`. What is too large is empty."""
        return self._links.fetch(number)

    def forget(self, number: str) -> None:
        """See :class:`~rondo.federation.server.line.site_line.SiteLine`."""
        self._links.drop(number)


def _listen(host: str, port: int) -> socket.socket:
    """A socket on ``host`` and ``port``. Raises :class:`ConfigError` if it cannot be had."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        message = f"cannot listen on {host}:{port}: {error}; name another address"
        raise ConfigError.at("--listen", message, "rondo federate server") from None
