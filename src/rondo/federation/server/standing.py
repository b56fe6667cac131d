"""The state of a run's sites, which the server keeps in ``sites.json`` for :mod:`rondo.federation.server.status`."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pydantic

from rondo.engine.transport import Observer
from rondo.errors import Problem, first_of
from rondo.records import durable

FILE = "sites.json"
"""The file of a run directory."""

SHOWN = 5
"""Most sites or clients in a line."""

State = Literal["not connected", "connected", "takes part", "refuses"]


@dataclass
class Standing:
    """A site of a run."""

    state: State = "not connected"
    since: str = ""
    reason: str = ""
    """The reason why it refuses."""
    came: bool = False
    """Whether it was ever connected."""
    rounds: int = 0
    """Number of rounds in which an upload of it counted."""
    counted: int = 0
    """The last of these rounds, from 1."""
    last: int = 0
    """The last round in which it answered, from 1; 0: none."""
    answered: str = ""
    """The time of that answer."""


class Standings:
    """The standing of every site, written to ``path`` at every change as soon as there is one."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self._of: dict[str, Standing] = {}
        self._lock = threading.Lock()

    def keep(self, path: Path) -> None:
        """Write to ``path`` from now on. What an earlier part of the run counted there goes on."""
        with self._lock:
            for name, before in read(path).items():
                site = self._of.setdefault(name, Standing(since=_now()))
                site.came |= before.came
                site.rounds, site.counted, site.last = before.rounds, before.counted, before.last
                site.answered = before.answered
            self.path = path
            self._write()

    def see(self, states: Mapping[str, tuple[State, str]]) -> list[str]:
        """Note the state of each site, and the reason of one that refuses. Returns the sites that went."""
        went = list[str]()
        with self._lock:
            changed = False
            for name, (state, reason) in states.items():
                site = self._of.setdefault(name, Standing(since=_now()))
                if (site.state, site.reason) != (state, reason):
                    went += [name] if state == "not connected" != site.state else []
                    site.state, site.reason, site.since, changed = state, reason, _now(), True
                    site.came |= state != "not connected"
            if changed:
                self._write()
        return went

    def round(self, number: int, answered: set[str], counted: set[str]) -> None:
        """Note the sites that answered in round ``number`` (from 1), and those whose uploads counted."""
        with self._lock:
            for name in answered:
                site = self._of.setdefault(name, Standing(since=_now()))
                site.last, site.answered = number, _now()
            for name in counted:
                if self._of[name].counted < number:  # a round that a crash undid is done again
                    self._of[name].rounds, self._of[name].counted = self._of[name].rounds + 1, number
            self._write()

    def _write(self) -> None:
        if self.path is not None:
            content = {name: asdict(site) for name, site in self._of.items()}
            with suppress(OSError):  # for people; the run does not need it
                durable.write(self.path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def read(path: Path) -> dict[str, Standing]:
    """The standings in a file; none where it is missing or broken."""
    try:
        return pydantic.TypeAdapter(dict[str, Standing]).validate_json(path.read_bytes(), strict=True)
    except (OSError, ValueError):
        return {}


def missing(clients: Mapping[str, str], states: Mapping[str, tuple[State, str]]) -> dict[str, Problem]:
    """The sites of ``clients``, which do not take part: each site with these clients, and its state.

    ``clients``: the site of each. ``states``: the state of each site, and the reason of one that refuses."""
    by_site: dict[str, list[str]] = {}
    for client, site in clients.items():
        by_site.setdefault(site, []).append(client)
    problems = {}
    for name, of_site in by_site.items():
        state, reason = states.get(name, ("not connected", ""))
        text = {
            "not connected": "is not connected",
            "connected": "is connected and has not answered",
            "takes part": "takes part without these clients",
            "refuses": f"refuses: {reason}",
        }[state]
        problems[name] = Problem(name if of_site == [name] else f"{name} ({first_of(of_site, SHOWN)})", text)
    return problems


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class Attendance(Observer):
    """Notes which sites take part in each round. ``resumed_after``: called with the number of rounds after which a run
    goes on."""

    def __init__(
        self,
        standings: Standings,
        clients: Mapping[str, str],
        resumed_after: Callable[[int], None] = lambda rounds: None,
    ) -> None:
        self._standings, self._clients, self._resumed_after = standings, clients, resumed_after
        self._answered: set[str] = set()

    def resumed(self, rounds: int, passed_over: Sequence[str]) -> None:
        self._resumed_after(rounds)

    def round_started(self, index: int, clients: int) -> None:
        self._answered.clear()

    def client_done(self, client: str, loss: float | None) -> None:
        self._answered.add(client)

    def client_failed(self, client: str) -> None:
        self._answered.add(client)

    def round_done(self, record: Mapping[str, Any]) -> None:
        failed = {failure["client"] for failure in record["failed"]}
        counted = self._answered - failed if record["skipped"] is None else set()
        sites = [{self._clients[c] for c in clients} for clients in (self._answered, counted)]
        self._standings.round(record["round"] + 1, *sites)
