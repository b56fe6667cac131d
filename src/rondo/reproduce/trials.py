"""The runs of an entry: which are missing, what they cost, and the scores of those that are there.

::

    OUT/NAME/ARM-seed-N-DIGEST/         an ordinary run directory per arm and seed
    OUT/NAME/tuning/ARM-seed-N-DIGEST/  one per arm, point of the grid and seed
    OUT/NAME/stopped.json               runs that could not finish, with the reason

DIGEST is that of the run's configuration, so that a changed entry has other folders, and nothing is ever deleted.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import statistics
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rondo.config.schema import RunConfig
from rondo.engine.transport import Observer
from rondo.errors import ConfigError, RunStopped
from rondo.reproduce.entry import Entry
from rondo.runs import runner
from rondo.runs.storage import durable
from rondo.runs.storage.directory import RunDirectory, to_toml

Point = Mapping[str, Any]
"""Values of a grid by key path."""

_OWN_ROWS = ("validation", "personal", "clients")
_ROUNDING = 1e-12
"""Values below it are rounding: no factor is asked of what follows them."""


@dataclass(frozen=True)
class Trial:
    """A run of an entry.

    ``is_tuning``: whether it only helps to choose a point of the grid.
    ``held_out``: whether its score is that of the rows held out of the training rows.
    """

    arm: str
    seed: int
    config: RunConfig
    folder: Path
    is_tuning: bool = False
    held_out: bool = False

    def __str__(self) -> str:
        return f"{self.arm}, seed {self.seed}"


@dataclass(frozen=True)
class Curve:
    """A run's values of the metric: rounds that are done, bytes sent so far in both directions, value. A measure has
    one before the first round too."""

    rounds: list[int]
    bytes: list[int]
    values: list[float]

    def until(self, most: int) -> list[float]:
        """The values for which no more than ``most`` bytes were sent."""
        return [value for sent, value in zip(self.bytes, self.values, strict=True) if sent <= most]

    def largest_factor(self) -> float:
        """The largest ratio of a value to the one before; 0 of a single value."""
        pairs = itertools.pairwise(self.values)
        return max((later / earlier for earlier, later in pairs if earlier > _ROUNDING), default=0.0)


class Trials:
    """The runs of an entry under ``out``."""

    def __init__(self, name: str, entry: Entry, out: Path, data: Path) -> None:
        """``data``: the folder of the entry's files. Raises :class:`ConfigError` for files that are not there."""
        self.name, self.entry, self.folder, self.data = name, entry, out / name, data
        for file, where in entry.files.items():
            if not (data / file).exists():
                message = f"{name} needs {file!r}, which is not in {str(data)!r}; it is to be had from {where}"
                raise ConfigError.at("--data", message, "rondo reproduce")

    @cached_property
    def stopped(self) -> dict[str, str]:
        """Runs that could not finish, by folder, with the reason."""
        file = self.folder / "stopped.json"
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}

    def missing(self) -> list[Trial]:
        """The runs to make next: those of the tuning until every arm is tuned, then one per arm and seed."""
        trials: list[Trial] = []
        for arm in self.entry.arms:
            point = self._tuned(arm)
            trials += point if isinstance(point, list) else []
        return trials or [trial for trial in self.runs() if not self._done(trial)]

    def runs(self) -> list[Trial]:
        """The runs whose scores count, seed by seed. All arms must be tuned."""
        return [self._trial(arm, seed, self.tuned(arm)) for seed in self.entry.seeds for arm in self.entry.arms]

    def tuned(self, arm: str) -> Point:
        """The point of the grid that ``arm`` takes."""
        point = self._tuned(arm)
        assert not isinstance(point, list), "a tuning is not finished"
        return point

    def seconds(self) -> float:
        """Seconds of all runs that are missing: as many for each as the mean of those that are there took, or as the
        entry says. Later halves of a tuning are not counted."""
        took = [r.read("summary.json")["seconds"]["all"] for r in self._finished()]
        of_one: float = statistics.fmean(took) if took else self.entry.seconds
        missing = self.missing()
        is_tuning = bool(missing) and missing[0].is_tuning
        return of_one * (len(missing) + (len(self.entry.arms) * len(self.entry.seeds) if is_tuning else 0))

    def spent(self) -> float:
        """Seconds of all runs that are there, tuning included."""
        return math.fsum(r.read("summary.json")["seconds"]["all"] for r in self._finished())

    def make(self, trial: Trial, device: str, observer: Observer | None, stop: threading.Event | None) -> None:
        """Make a run, or go on with it. One that cannot finish is noted, and counts with its last score."""
        try:
            if (trial.folder / "manifest.json").is_file():
                runner.resume(trial.folder, device=device, observer=observer, stop=stop)
            else:
                runner.run(trial.config, run_dir=trial.folder, device=device, observer=observer, stop=stop)
        except RunStopped as error:
            self.stopped[self._key(trial)] = str(error)
            content = json.dumps(self.stopped, indent=2, ensure_ascii=False).encode()
            durable.write_all(self.folder, {"stopped.json": content})

    def curve(self, trial: Trial) -> Curve:
        """The values of a run that is done. Raises :class:`ConfigError` if its record has none, or one without the
        logarithm that is asked for."""
        directory, curve, total = RunDirectory(trial.folder), Curve([], [], []), 0
        before = directory.read("summary.json")["measures"]["before"] if directory.finished else {}
        start = {"round": -1, "bytes_up": 0, "bytes_down": 0, "scores": {}, "measures": before}
        for record in [start, *directory.rounds()]:
            done = record["round"] + 1
            total += record["bytes_up"] + record["bytes_down"]
            value = self._value(record, held_out=trial.held_out)
            if value is None or done % self.entry.every:
                continue
            if self.entry.log10 and value <= 0:
                message = f"{self.entry.metric} is {value} after {done} rounds of {trial.folder.name}"
                raise ConfigError.at("log10", f"{message}, which has no logarithm: make fewer rounds", self.name)
            curve.rounds.append(done)
            curve.bytes.append(total)
            curve.values.append(value)
        if curve.rounds in ([], [0]):
            message = (
                f"no round of {trial.folder.name} has a score {self.entry.metric!r}; its scores are in metrics.jsonl"
            )
            raise ConfigError.at("metric", message, self.name)
        return curve

    def score(self, trial: Trial) -> float:
        """The score of a run that is done."""
        return self.score_of(self.curve(trial).values)

    def score_of(self, values: Sequence[float]) -> float:
        """The score of a run that had these values."""
        scored = [self.scaled(value) for value in values]
        return min(scored) if self.entry.take == "smallest" else statistics.fmean(scored[-self.entry.last :])

    def scaled(self, value: float) -> float:
        """A value, or its logarithm if the entry's scores are such."""
        return math.log10(value) if self.entry.log10 else value

    def unscaled(self, score: float) -> float:
        """A score, a mean or a difference of scores in the unit of the metric; of logarithms a ratio."""
        return 10.0**score if self.entry.log10 else score

    def _value(self, record: Mapping[str, Any], *, held_out: bool) -> float | None:
        scores = {**record["scores"], "measures": record["measures"], "diagnostics": record.get("diagnostics", {})}
        *path, key = self.entry.metric.split(".")
        if held_out or path == ["own"]:
            kinds = _OWN_ROWS if held_out else _OWN_ROWS[1:]
            path = [next((kind for kind in kinds if kind in scores), "")]
        for part in path:
            scores = scores.get(part, {})
        value = scores.get(key)
        return value["mean"] if isinstance(value, Mapping) else value

    def _tuned(self, arm: str) -> Point | list[Trial]:
        """The best point of the grid, or the trials that are missing to know the next half of the points."""
        tuning = self.entry.tuning
        if tuning is None:
            return {}
        points = [dict(zip(tuning.grid, values, strict=True)) for values in itertools.product(*tuning.grid.values())]
        for count, seed in enumerate(tuning.seeds, 1):
            trials = [[self._trial(arm, s, p, tuning.held_out) for s in tuning.seeds[:count]] for p in points]
            if missing := [row[-1] for row in trials if not self._done(row[-1])]:
                return missing
            means = [statistics.fmean(self._comparable(trial) for trial in row) for row in trials]
            order = sorted(range(len(points)), key=means.__getitem__)
            points = [points[k] for k in order[: math.ceil(len(points) / 2) if seed != tuning.seeds[-1] else 1]]
        return points[0]

    def _comparable(self, trial: Trial) -> float:
        """The score of a trial, the lower the better. One that could not finish is the worst."""
        if self._key(trial) in self.stopped:
            return math.inf
        score = self.score(trial)
        return score if self.entry.lower_is_better else -score

    def _trial(self, arm: str, seed: int, point: Point, held_out: float | None = None) -> Trial:
        """A run at a point of the grid; a tuning's with the share that is held out."""
        more = {**point, "data.validation_fraction": held_out} if held_out else point
        config = self.entry.run(arm, seed, self.data, more)
        digest = hashlib.sha256(to_toml(self.entry.run(arm, seed, Path(), more, check=False)).encode()).hexdigest()[:8]
        folder = self.folder if held_out is None else self.folder / "tuning"
        return Trial(arm, seed, config, folder / f"{arm}-seed-{seed}-{digest}", held_out is not None, bool(held_out))

    def _done(self, trial: Trial) -> bool:
        return self._key(trial) in self.stopped or RunDirectory(trial.folder).finished

    def _key(self, trial: Trial) -> str:
        return trial.folder.relative_to(self.folder).as_posix()

    def _finished(self) -> Iterator[RunDirectory]:
        for file in sorted(self.folder.rglob("summary.json")):
            yield RunDirectory(file.parent)
