"""The record of a federation's run, ``federation.json``: its name, how its server is reached, its sites, and where they
compute."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from rondo.errors import ConfigError, Problem
from rondo.federation import environment
from rondo.federation.identity.roster import Enrolled, Roster
from rondo.federation.server.listening import Listening, unfit
from rondo.records import durable
from rondo.records.directory import RunDirectory
from rondo.records.durable import written

FILE = "federation.json"
"""The file of a run directory."""


@dataclass
class Record:
    """The record of a run."""

    run: str
    """The name that no other run has."""
    listening: Listening
    roster: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Clients and key's fingerprint of each site."""
    ranks: dict[str, int] | None = None
    """Each client's rank, where clients have ranks of their own."""
    changes: list[dict[str, Any]] = field(default_factory=list)
    """Changes of the roster, each with the number of rounds before it."""
    server: dict[str, str] = field(default_factory=environment.here)
    """The server's machine."""
    sites: dict[str, dict[str, str]] = field(default_factory=dict)
    """Everything in which each site ever computed otherwise."""
    path: Path | None = None
    """Its file; None as long as there is none."""
    _changed: bool = False
    """Whether the last of ``changes`` came with this resumption."""
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @classmethod
    def read(cls, directory: RunDirectory) -> Self:
        """The record of a run. Raises :class:`ConfigError` for one that no server has written."""
        content = directory.read(FILE)
        try:
            known = {f.name: content["listening"].get(f.name, f.default) for f in fields(Listening)}
            listening = Listening(**{**known, "keys": Path(known["keys"])})
            sites = {n: {"clients": list(s["clients"]), "key": str(s["key"])} for n, s in content["roster"].items()}
            ranks = None if content["ranks"] is None else {c: int(rank) for c, rank in content["ranks"].items()}
            changes, (server, others) = list(content["changes"]), (content["server"], content["sites"])
            others = {name: dict(differing) for name, differing in others.items()}
            path = directory.path / FILE
            return cls(str(content["run"]), listening, sites, ranks, changes, dict(server), others, path)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ConfigError.at("RUN_DIR", f"{FILE} is not one that a server has written") from None

    def write(self) -> None:
        """Write the file. Raises OSError."""
        assert self.path is not None
        with self._lock:
            keys = str(Path(self.listening.keys).resolve())
            content = {
                "run": self.run,
                "listening": {**asdict(self.listening), "keys": keys},
                "roster": self.roster,
                "ranks": self.ranks,
                "changes": self.changes,
                "server": self.server,
                "sites": self.sites,
            }
            durable.write(self.path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())

    def computes(self, site: str, where: environment.Environment) -> str | None:
        """Note where ``site`` computes. Returns a line if the run has begun, and this is another place than all that
        was known of the site."""
        with self._lock:
            known, differing = self.sites.get(site), environment.differences(self.server, where)
            if known is not None and differing.items() <= known.items():
                return None
            self.sites[site] = {**(known or {}), **differing}
            if self.path is None:
                return None
            with suppress(OSError):  # for people; the run does not need it
                self.write()
            return self.bits() if differing else None

    def bits(self, *, noise: bool = False) -> str:
        """Whether the bits are those of a simulation, as a line. ``noise``: whether there is noise that no seed
        gives."""
        return environment.said(self.server, self.sites, noise=noise)

    def enrol(self, sites: Sequence[Enrolled], changes: Sequence[str] = ()) -> None:
        """Note the sites of the run, and the changes of the roster that led to them."""
        self.roster = {s.name: {"clients": list(s.clients), "key": s.fingerprint} for s in sites}
        self.sites = {name: where for name, where in self.sites.items() if name in self.roster}
        if changes:
            self.changes.append({"round": 0, "changes": list(changes)})
        self._changed = bool(changes)

    def resumed(self, rounds: int) -> None:
        """The run goes on after ``rounds`` rounds."""
        if self._changed:
            self.changes[-1]["round"] = rounds
            assert self.path is not None
            with written(self.path.parent):
                self.write()

    # --- the roster at a resumption -------------------------------------------------------------------------------

    def changes_to(self, now: Roster, *, allowed: bool, told: Callable[[str], None]) -> list[str]:
        """The changes of the roster since the run began. A renewed key is told, and is none of them. Raises
        :class:`ConfigError` with all changes, unless they are ``allowed``."""
        changes = list(self._differences(now))
        if changes and not allowed:
            message = "the roster is not the run's: bring it back, or set this to go on with the roster as it is now"
            problems = [*(Problem("roster", change) for change in changes), Problem("--roster-changed", message)]
            raise ConfigError(problems, "rondo resume")
        for change in changes:
            told(f"the roster has changed: {change}")
        for site in now.sites:
            if site.name in self.roster and self.roster[site.name]["key"] != site.fingerprint:
                told(f"{site.name} has another key than before")
        return changes

    def _differences(self, now: Roster) -> Iterator[str]:
        """Everything by which the run's clients would be others with the roster ``now``, as lines."""
        valid = {site.name: site for site in now.valid(datetime.now(UTC).date())}
        entries = {site.name: site for site in now.sites}
        before = {client: name for name, site in self.roster.items() for client in site["clients"]}
        after = {client: name for name, site in valid.items() for client in site.clients}
        for name, site in self.roster.items():
            if name not in valid:
                reason = unfit(entries[name]) if name in entries else "it is not in the roster any more"
                yield f"{name} ({', '.join(site['clients'])}): {reason}"
        for name, entry in valid.items():
            if name not in self.roster:
                yield f"{name} ({', '.join(entry.clients)}): it is in the roster since"
        for client in sorted(before.keys() | after.keys()):
            was, now_at = before.get(client), after.get(client)
            if was is not None and now_at is not None and was != now_at:
                yield f"client {client!r}: it was of {was}, and is of {now_at} now"
            elif now_at is None and was in valid:
                yield f"client {client!r}: it is not of {was} any more"
            elif was is None and now_at in self.roster:
                yield f"client {client!r}: it is of {now_at} since"
