"""The address of a federation's server, and the line that it opens there."""

from __future__ import annotations

import threading
from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from rondo.config.checks import no_seconds
from rondo.errors import ConfigError, Problem
from rondo.federation.identity import certificates
from rondo.federation.identity.keys import ServerKeys
from rondo.federation.identity.roster import FILE, Enrolled, Roster
from rondo.federation.letter import PORT
from rondo.federation.monitor import ending
from rondo.federation.notify import notify
from rondo.federation.server.line.superlink import SuperLink


@dataclass(frozen=True)
class Listening:
    """Address, keys and patience of a server.

    - ``keys``: its folder of keys.
    - ``host``, ``port``: its address; port 0 is any free one.
    - ``insecure``: without TLS, on the loopback address only.
    - ``wait``: seconds that it waits for all clients before the first round, or for enough of them.
    - ``patience``: seconds that a round waits for a site that is not connected any more.
    - ``monitor``: the address of its ``/healthz`` and ``/metrics``, HOST:PORT; None has none.
    """

    keys: Path
    host: str = "0.0.0.0"
    port: int = PORT
    insecure: bool = False
    wait: float = 600.0
    patience: float = 60.0
    monitor: str | None = None

    def check(self) -> None:
        """Raise :class:`ConfigError` for times that are none, and where anybody could read along."""
        times = (("--wait", self.wait), ("--patience", self.patience))
        if problems := [Problem(option, r) for option, time in times if (r := no_seconds(time)) is not None]:
            raise ConfigError(problems)
        if self.insecure and self.host not in ("127.0.0.1", "::1", "localhost"):
            message = f"without TLS only the loopback address is served, not {self.host}: set --listen 127.0.0.1"
            raise ConfigError.at("--insecure", message)


@contextmanager
def link(listening: Listening, clients: Clients, told: Callable[[str], None]) -> Iterator[SuperLink]:
    """A SuperLink that serves the sites of ``clients``' roster."""
    keys = ServerKeys.read(listening.keys)
    tls = {} if listening.insecure else {"certificate": keys.certificate, "key": keys.key}
    line = SuperLink(clients.roster, (listening.host, listening.port), **tls, told=told)
    try:
        line.start()
        told(f"listening on {listening.host}:{line.port} for {len(clients)} clients")
        notify("READY=1")
        with renewed(listening.keys, line, clients.roster, told):
            yield line
    finally:
        line.stop()


class Clients(Mapping[str, str]):
    """The site of every client of a run: the clients of the roster's valid sites, as the roster is now. Once the run
    begins, they stay the same."""

    def __init__(self, folder: Path, told: Callable[[str], None]) -> None:
        """``folder``: the server's keys. Raises :class:`ConfigError` if no site of its roster can take part."""
        self._told, self._unfit = told, set[str]()
        self.roster = _Watched(folder / FILE, told).roster
        """Gives the roster as it is now."""
        self._sites: tuple[Enrolled, ...] = ()
        self._of: Mapping[str, str] = {}
        self._known: tuple[Roster, date] | None = None
        self._begun = False
        if not self._now():
            names = ", ".join(sorted(self._unfit))
            fault = f"no site is left in its roster ({names})" if names else "its roster has no site"
            raise ConfigError.at(str(folder), f"{fault}: add one by rondo federate keys make")

    def begin(self) -> None:
        """The run begins: its clients stay as they are."""
        self._now()
        self._begun = True

    @property
    def sites(self) -> tuple[Enrolled, ...]:
        """The sites of the clients."""
        self._now()
        return self._sites

    def __getitem__(self, client: str) -> str:
        return self._now()[client]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def items(self) -> ItemsView[str, str]:
        """All pairs at one time: the roster may change between two of them."""
        return self._now().items()

    def values(self) -> ValuesView[str]:
        """All sites at one time."""
        return self._now().values()

    def _now(self) -> Mapping[str, str]:
        if not self._begun:
            known = self.roster(), datetime.now(UTC).date()
            if known != self._known:
                self._known = known
                self._look(*known)
        return self._of

    def _look(self, roster: Roster, today: date) -> None:
        """Take the valid sites of ``roster``, and tell of the others once."""
        self._sites = roster.valid(today)
        self._of = {client: site.name for site in self._sites for client in site.clients}
        valid = {site.name for site in self._sites}
        for site in roster.sites:
            if site.name in valid:
                self._unfit.discard(site.name)
            elif site.name not in self._unfit:
                self._unfit.add(site.name)
                self._told(f"{site.name} is not among the run's sites: {unfit(site)}")


def unfit(site: Enrolled) -> str:
    """The reason why the key of a site that is not valid does not count."""
    return "its key is revoked" if site.revoked else f"its key expired on {site.expires}"


class _Watched:
    """The roster in a file, read again when the file has changed. While the file is missing or broken, the last one
    stays in force, and that is told once."""

    def __init__(self, path: Path, told: Callable[[str], None]) -> None:
        self._path, self._told = path, told
        # In one: several threads ask, and the roster that they see must be that of this stamp or a newer one.
        self._seen = _stamp(path), Roster.read(path)

    def roster(self) -> Roster:
        """The roster as it is now."""
        stamp, (seen, known) = _stamp(self._path), self._seen
        if stamp != seen:
            self._seen = stamp, self._read(known)
        return self._seen[1]

    def _read(self, known: Roster) -> Roster:
        try:
            return Roster.read(self._path)
        except ConfigError as error:
            (problem,) = error.problems
            self._told(f"the roster from before stays in force: {problem.path}: {problem.message}")
            return known


def _stamp(path: Path) -> tuple[int, ...]:
    """Everything by which it shows that a file was written again; nothing while it is missing."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_ino, status.st_size


_LOOK = 2.0
"""Seconds between looks for renewed files."""


def ends(folder: Path, roster: Roster) -> dict[str, date]:
    """When each of the server's certificates and of its sites' keys ends."""
    chain = certificates.read_chain(folder / "server.crt")
    dates = {"the server's certificate": min(certificate.not_valid_after_utc for certificate in chain).date()}
    valid = roster.valid(datetime.now(UTC).date())
    return dates | {f"the key of {site.name}": site.expires for site in valid if site.expires is not None}


@contextmanager
def renewed(folder: Path, line: SuperLink, roster: Callable[[], Roster], told: Callable[[str], None]) -> Iterator[None]:
    """Within, renewed files of the server's certificate and key are taken, and what ends soon is told every day."""
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(folder, line, roster, told, over), name="renewal", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _watch(
    folder: Path, line: SuperLink, roster: Callable[[], Roster], told: Callable[[str], None], over: threading.Event
) -> None:
    files = [folder / name for name in ("server.crt", "server.key")]
    said, seen = None, list(map(_stamp, files))
    while True:
        if (today := datetime.now(UTC).date()) != said:
            for text in ending(ends(folder, roster()), today):
                told(text)
            said = today
        if over.wait(_LOOK):
            return
        if (stamps := list(map(_stamp, files))) != seen:
            seen = stamps
            try:
                keys = ServerKeys.read(folder)
                line.renew(keys.certificate, keys.key)
            except ConfigError as error:
                told(f"the certificate from before stays in use: {error.problems[0]}")
            else:
                told("the server's certificate was renewed, and is in use")
                said = None
