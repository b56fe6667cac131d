"""Trackers that follow a run in one thread, behind one bounded queue.

The queue has the number of committed rounds, and the rounds themselves are in the run directory. So a number that finds
no room costs nothing, and a round that could not be told is told with the next one. Trackers take it as numbers by
name.
"""

from __future__ import annotations

import contextlib
import json
import math
import queue
import re
import secrets
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from rondo.config.schema import RunConfig
from rondo.engine.transport import Observer, Tee
from rondo.records.directory import RunDirectory
from rondo.records.durable import written
from rondo.runs.tracking.tracker import About, Ending, Tracker, made

FILE = "tracking.json"
"""The file of a run directory with the id by which trackers know the run."""

PATIENCE = 10.0
"""Seconds that the trackers have together to end, once the run has ended."""
_ROOM = 64
"""Numbers that wait in the queue at most."""


@contextlib.contextmanager
def tracked(directory: RunDirectory, config: RunConfig, observer: Observer) -> Iterator[Observer]:
    """Within, the trackers of ``config`` follow a run; yields an observer that tells them and ``observer``.

    A tracker that raises is named in a warning, once, as is one that has not ended after :data:`PATIENCE`.
    """
    if not config.track.to:
        yield observer
        return
    identity = _id(directory)
    with written(directory.path):
        directory.write(FILE, {"id": identity})
    name, known = directory.path.resolve().name, settings(config.model_dump(mode="json"))
    facts = (directory.path.resolve(), identity, name, config.track.project, known)
    about = About(*facts, config.guarantee.secret_turnout)
    told = Told(Trackers({name: made(name) for name in config.track.to}, about))
    ending: Ending = "stopped"
    try:
        yield Tee(told, observer)
        ending = "finished"
    finally:
        told.close(ending)


class Trackers:
    """Tells trackers of the committed rounds of a run, each once and in their order, in the thread that calls it.

    ``faults``: the first error of each tracker that raised one, by name. ``busy``: the tracker that is being told.
    """

    def __init__(self, trackers: Mapping[str, Tracker], about: About) -> None:
        self.trackers, self.about = trackers, about
        self.told: dict[str, int] = {}
        """The number of rounds that each tracker has, from its beginning on."""
        self.faults: dict[str, str] = {}
        self.busy: str | None = None

    def up_to(self, rounds: int) -> None:
        """Tell every tracker all rounds up to the ``rounds``-th that it has not."""
        for name, tracker in self.trackers.items():
            with self._noted(name):
                if name not in self.told:
                    self.told[name] = tracker.begin(self.about)
                for line in _lines(self.about)[self.told[name] : rounds]:
                    numbers = values(json.loads(line), secret_turnout=self.about.secret_turnout)
                    tracker.round(self.told[name] + 1, numbers)
                    self.told[name] += 1

    def close(self, rounds: int, ending: Ending) -> None:
        """Tell the rest and end the trackers' runs, if they ever began."""
        if any(self.told.get(name, 0) < rounds for name in self.trackers):
            self.up_to(rounds)
        for name in self.told:
            with self._noted(name):
                self.trackers[name].close(ending)

    @contextlib.contextmanager
    def _noted(self, name: str) -> Iterator[None]:
        self.busy = name
        try:
            yield
        except Exception as error:
            self.faults.setdefault(name, f"{type(error).__name__}: {error}")
        self.busy = None


class Told(Observer):
    """Tells a thread of trackers the number of committed rounds.

    If how many clients took part is a secret, all rounds are told at the end: a tracker keeps the time at which it is
    told each, and the time of a round tells how many trained in it.
    """

    def __init__(self, trackers: Trackers, patience: float = PATIENCE) -> None:
        self.trackers, self.patience, self.rounds = trackers, patience, 0
        self.warned: set[str] = set()
        self._counts: queue.Queue[tuple[int, Ending | None]] = queue.Queue(_ROOM)
        self._thread = threading.Thread(target=self._follow, name="rondo-trackers", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        ending = None
        while ending is None:
            rounds, ending = self._counts.get()
            if ending is not None:
                self.trackers.close(rounds, ending)
            elif not self.trackers.about.secret_turnout:
                self.trackers.up_to(rounds)

    def resumed(self, rounds: int, passed_over: Sequence[str]) -> None:
        self._tell(rounds)

    def round_done(self, record: Mapping[str, Any]) -> None:
        self._tell(record["round"] + 1)

    def _tell(self, rounds: int) -> None:
        self.rounds = rounds
        with contextlib.suppress(queue.Full):  # the next number says more
            self._counts.put_nowait((rounds, None))
        self._warn()

    def close(self, ending: Ending) -> None:
        """Wait for the trackers to end."""
        with contextlib.suppress(queue.Full):
            self._counts.put((self.rounds, ending), timeout=self.patience)
            self._thread.join(self.patience)
        if self._thread.is_alive():
            self.trackers.faults.setdefault(str(self.trackers.busy), "it does not answer, and nothing waits for it")
        self._warn()

    def _warn(self) -> None:
        for name in self.trackers.faults.keys() - self.warned:
            self.warned.add(name)
            message = f"{name} may lack rounds of this run, which goes on ({self.trackers.faults[name]})"
            warnings.warn(message, stacklevel=2)


def _lines(about: About) -> Sequence[bytes]:
    """The whole lines of ``metrics.jsonl``."""
    file = about.folder / "metrics.jsonl"
    return file.read_bytes().split(b"\n")[:-1] if file.exists() else []


def _id(directory: RunDirectory) -> str:
    """The run's id, the same after a resumption."""
    if (directory.path / FILE).is_file():
        content = directory.read(FILE)
        if isinstance(content, dict) and isinstance(content.get("id"), str) and content["id"].isalnum():
            return str(content["id"])
    return secrets.token_hex(8)


_PLAIN = ("loss", "lr")
_OF_TURNOUT = ("clients", "bytes_up", "bytes_down", "seconds", "train_seconds", "server_seconds")
"""Numbers that follow the number of clients in the round."""
_OF_CLIENTS = ("mean", "weighted_mean", "worst_tenth")
_LISTED = 100
"""Longer lists of a configuration, such as a rank per client, are counted."""
_NOT_THE_NAME = re.compile(r"[^\w /.:-]", re.ASCII)
"""Characters that a tracker may refuse in a name."""


def values(record: Mapping[str, Any], *, secret_turnout: bool = False) -> dict[str, float]:
    """The numbers of a line of ``metrics.jsonl`` that are finite. Those of single clients are left out, and with
    ``secret_turnout`` those of how many took part: a tracker may be anywhere."""
    return {
        _NOT_THE_NAME.sub("_", name): float(value)
        for name, value in _numbers(record, secret_turnout)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _numbers(record: Mapping[str, Any], secret_turnout: bool) -> Iterator[tuple[str, Any]]:
    yield "round", record["round"] + 1
    if not secret_turnout:
        yield "failed", len(record["failed"])
        yield from ((key, record.get(key)) for key in _OF_TURNOUT)
    yield from ((key, record.get(key)) for key in _PLAIN)
    if record.get("epsilon_valid"):
        yield "epsilon", record["epsilon"]
    yield from ((f"measures/{name}", value) for name, value in record.get("measures", {}).items())
    for kind, scores in record["scores"].items():
        yield from _scores(kind, scores)
    diagnostics = record.get("diagnostics") or {}
    yield from ((f"diagnostics/{name}", value) for name, value in diagnostics.items())


def _scores(place: str, scores: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in scores.items():
        if name == "per_client":
            continue
        if not isinstance(value, Mapping):
            yield f"{place}/{name}", value
        elif place == "more_tests":
            yield from _scores(f"test {name}", value)
        else:
            yield from ((f"{place}/{name}/{part}", value.get(part)) for part in _OF_CLIENTS)


def settings(config: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """A configuration by key path, as a tracker takes it: without paths of this machine, of which the end is kept."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        place = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            found |= settings(value, place)
        elif isinstance(value, list) and len(value) > _LISTED:
            found[place] = f"{len(value)} values"
        elif value is not None:
            found[place] = _named(value) if isinstance(value, str) else value
    return found


def _named(text: str) -> str:
    for path in (PurePosixPath(text), PureWindowsPath(text)):
        if path.is_absolute():
            return path.name
    return text
