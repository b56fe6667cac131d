"""Runs under a folder: made, gone on with, and scored.

::

    FOLDER/.../ARM-seed-N-DIGEST/   an ordinary run directory per trial
    FOLDER/stopped.json             trials that could not finish, with the reason

DIGEST is that of the run's configuration, so that other settings have other folders, and nothing is ever deleted.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import statistics
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, DiskFailed, RunStopped
from rondo.records import durable
from rondo.records.curve import Curve, points
from rondo.records.directory import RunDirectory, as_written, to_toml
from rondo.runs.taken import OTHER_FOLDER, check_taken
from rondo.study.reason import reason
from rondo.study.tune.tuning import Point

if TYPE_CHECKING:
    from rondo.engine.transport import Observer

_CAME_LATER = (("partition", "deal_tests"),)
"""Keys that are younger than published records (docs/results/runs): at their default they are not in DIGEST, or every
run that is there would have another folder by now, and be made again."""


@dataclass(frozen=True)
class Trial:
    """A run.

    ``point``: the values that it tries, by key path.
    ``is_tuning``: whether it only helps to choose a point of a grid.
    ``held_out``: whether its score is that of the rows held out of the training rows.

    Raises :class:`ConfigError` where such a score is never taken.
    """

    arm: str
    seed: int
    config: RunConfig
    folder: Path
    point: Point = field(default_factory=dict)
    is_tuning: bool = False
    held_out: bool = False

    def __post_init__(self) -> None:
        if self.held_out and self.config.guarantee.promises:
            message = (
                "under [privacy] no scores of clients' rows are taken, so no trial has one on rows held out. A search "
                "without [privacy] would release these rows without a guarantee: search on public rows (data.source), "
                "or by the test rows with noise in every trial, whose epsilons add up: rondo compare --vary, or "
                "held_out = 0 of an entry"
            )
            raise ConfigError.at("privacy.adversary", message)

    @property
    def has_begun(self) -> bool:
        """Whether its folder holds a run."""
        return (self.folder / "manifest.json").is_file()

    def __str__(self) -> str:
        values = [f"{key}={value}" for key, value in self.point.items()] if self.is_tuning else []
        return ", ".join([self.arm, *values, f"seed {self.seed}"])


@dataclass(frozen=True)
class Score:
    """The score of a run, from the records of its rounds."""

    metric: str
    """Its path in a round's record."""
    last: int = 1
    """The number of last values whose mean is the score."""
    log10: bool = False
    """Whether the score is the metric's logarithm."""
    lower_is_better: bool = False
    every: int = 1
    """Only every so many rounds have a value."""
    take: Literal["last", "smallest"] = "last"
    """The score: the mean of the last values, or the smallest of all."""

    def curve(self, trial: Trial) -> Curve:
        """The values of a run that is done. Raises :class:`ConfigError` if its record has none, or one without the
        logarithm that is asked for, or is not as a run writes it."""
        with as_written(trial.folder):
            return self._curve(trial)

    def _curve(self, trial: Trial) -> Curve:
        directory = RunDirectory(trial.folder)
        summary = directory.read("summary.json") if directory.finished else None
        before = {} if summary is None else summary["measures"]["before"]
        clients = len(directory.read("partition.json")["clients"]) if summary is None else summary["clients"]
        private = None if summary is None else summary.get("privacy")
        # Records that are published with a page may be older than this key, and are of simulations.
        told = None if private is None else {"simulation": True, **private}
        sent = list[float]()
        curve = Curve([], None if trial.config.guarantee.secret_turnout else sent, [], clients, told)
        for point in points(directory.rounds(), partial(self._value, held_out=trial.held_out), {}, before):
            if point.rounds % self.every:
                continue
            if self.log10 and point.value <= 0:
                message = f"{self.metric} is {point.value} after {point.rounds} rounds of {trial.folder.name}"
                raise ConfigError.at("log10", f"{message}, which has no logarithm: make fewer rounds", str(trial))
            curve.rounds.append(point.rounds)
            sent.append(point.bytes / clients)
            curve.values.append(point.value)
        if curve.rounds in ([], [0]):
            where = " on rows held out" if trial.held_out else ""
            message = f"no round has a score {self.metric!r}{where}; the scores are in {trial.folder / 'metrics.jsonl'}"
            raise ConfigError.at("metric", message, str(trial))
        return curve

    def of(self, trial: Trial) -> float:
        """The score of a run that is done."""
        return self.of_values(self.curve(trial).values)

    def of_values(self, values: Sequence[float]) -> float:
        """The score of a run that had these values."""
        scored = [self.scaled(value) for value in values]
        return min(scored) if self.take == "smallest" else statistics.fmean(scored[-self.last :])

    def late_change(self, curve: Curve) -> float | None:
        """The mean of the values in the last tenth of the rounds less that in the tenth before; None without a value
        before the last tenth. The change of a score which is a mean of many values, or their smallest, would be small
        of any curve."""
        end, scaled = curve.rounds[-1], [self.scaled(value) for value in curve.values]
        count, earlier = (sum(done <= share * end for done in curve.rounds) for share in (0.9, 0.8))
        if count == 0:
            return None
        return statistics.fmean(scaled[count:]) - statistics.fmean(scaled[min(earlier, count - 1) : count])

    def scaled(self, value: float) -> float:
        """A value, or its logarithm if scores are such."""
        return math.log10(value) if self.log10 else value

    def unscaled(self, score: float) -> float:
        """A score, a mean or a difference of scores in the unit of the metric; of logarithms a ratio."""
        return 10.0**score if self.log10 else score

    def _value(self, record: Mapping[str, Any], *, held_out: bool) -> float | None:
        scores: Any = {**record["scores"], **{key: record.get(key) for key in ("measures", "diagnostics")}}
        *path, key = self.metric.split(".")
        own = path == ["own"]
        if held_out or own:
            kinds = (*["validation"] * held_out, *["fine_tuned"] * own, "personal", "clients")
            path = [next((kind for kind in kinds if kind in scores), "")]
        for part in (*path, key):
            scores = scores.get(part) if isinstance(scores, Mapping) else None
        value = scores.get("mean") if isinstance(scores, Mapping) else scores
        return value if isinstance(value, int | float) else None


class Runs:
    """The runs under ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def stopped(self) -> dict[str, str]:
        """Runs that could not finish, by folder, with the reason."""
        file = self.folder / "stopped.json"
        with as_written(file):
            told = RunDirectory(self.folder).read(file.name) if file.exists() else {}
            return {str(run): str(why) for run, why in told.items()}

    def has_stopped(self, trial: Trial) -> bool:
        return self._key(trial) in self.stopped

    def done(self, trial: Trial) -> bool:
        """Whether there is nothing left to do of a run."""
        return self.has_stopped(trial) or RunDirectory(trial.folder).finished

    def check_done(self, trials: Iterable[Trial], device: str, source: str) -> None:
        """Raise :class:`ConfigError` for a run that is done and was made from other rows, another model or other code
        than its configuration names today."""
        done = ((trial.folder, trial.config) for trial in trials if trial.folder.exists() and self.done(trial))
        check_taken(done, device, OTHER_FOLDER, source)

    def make(self, trial: Trial, device: str, observer: Observer | None, stop: threading.Event | None) -> None:
        """Make a run, or go on with it. One that cannot finish is noted, and counts with its last score; one that a
        full disk ends is not. Without an observer nothing is said of its rounds: a search has hundreds of runs.
        Raises :class:`DiskFailed`, and otherwise as :func:`rondo.run` does."""
        from rondo.runs import again, runner
        from rondo.runs.watching.progress import Quiet

        observer = observer or Quiet()
        try:
            if trial.has_begun:
                with again.one_of_many(trial.folder):
                    runner.resume(trial.folder, device=device, allow_code=True, observer=observer, stop=stop)
            else:
                runner.run(trial.config, run_dir=trial.folder, device=device, observer=observer, stop=stop)
        except DiskFailed:
            raise
        except RunStopped as error:
            self._note(trial, str(error))

    def make_all(
        self,
        trials: Sequence[Trial],
        device: str,
        *,
        processes: int = 1,
        stop: threading.Event | None = None,
        end: float = math.inf,
    ) -> Iterator[tuple[Trial, float]]:
        """Make runs, or go on with them, and yield each with its seconds. With several ``processes`` so many are made
        at a time, each in one of its own. None is started after ``end``, by the monotonic clock. Raises as
        :func:`rondo.run` does, and :class:`rondo.RunStopped` where a process was ended from outside."""
        places = {trial.folder: trial for trial in trials}
        if processes == 1:
            for trial in places.values():
                if (began := time.monotonic()) > end:
                    return
                self.make(trial, device, None, stop)
                yield trial, time.monotonic() - began
            return
        from rondo.study.parallel import Job, in_processes

        jobs = [Job(str(trial), trial.config, folder, trial.has_begun) for folder, trial in places.items()]
        for ended in in_processes(jobs, processes, device, str(self.folder), stop=stop, end=end):
            trial = places[ended.job.run_dir]
            if ended.died is not None:
                raise RunStopped(f"{trial}: {ended.died}; give it more memory, or run fewer at a time")
            if ended.disk_failed:
                raise DiskFailed(ended.stopped)
            if ended.stopped is not None:
                self._note(trial, ended.stopped)
            yield trial, ended.seconds

    def took(self) -> list[float]:
        """Seconds of each run that is finished."""
        seconds = []
        for directory in self._finished():
            with as_written(directory.path):
                seconds.append(float(directory.read("summary.json")["seconds"]["all"]))
        return seconds

    def _note(self, trial: Trial, message: str) -> None:
        self.stopped[self._key(trial)] = reason(message, trial.config, trial.folder)
        content = json.dumps(self.stopped, indent=2, ensure_ascii=False).encode()
        with durable.written(self.folder):
            durable.write_all(self.folder, {"stopped.json": content})

    def _key(self, trial: Trial) -> str:
        return trial.folder.relative_to(self.folder).as_posix()

    def _finished(self) -> Iterator[RunDirectory]:
        for file in sorted(self.folder.rglob("summary.json")):
            yield RunDirectory(file.parent)


def place(folder: Path, arm: str, seed: int, config: RunConfig) -> Path:
    """The run directory in ``folder`` of a run with this configuration."""
    digest = hashlib.sha256(to_toml(config, _CAME_LATER).encode()).hexdigest()[:8]
    name = re.sub(r"[^\w.-]+", "-", arm.replace(":", "."))
    return folder / f"{name}-seed-{seed}-{digest}"
