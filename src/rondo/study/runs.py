"""The runs of a study, in a folder: which are there, which are missing or stopped, made here or side by side. Imports
no torch until a run starts.

::

    FOLDER/.../ARM-seed-N-DIGEST/   an ordinary run directory per trial
    FOLDER/stopped.json             trials that could not finish, with the reason

DIGEST is that of the run's configuration, so that other settings have other folders, and nothing is ever deleted.
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rondo.config.schema import RunConfig
from rondo.errors import DiskFailed, RunStopped
from rondo.records import durable
from rondo.records.directory import RunDirectory, as_written, to_toml
from rondo.runs.again import OTHER_FOLDER, check_taken
from rondo.runs.assembling.given import NOTHING, Given

if TYPE_CHECKING:
    from rondo.engine.transport import Observer


@dataclass(frozen=True)
class Trial:
    """A run of a study. As text it is its name.

    ``arm``: the method or arm, with what is varied.
    ``point``: the values that it tries, by key path.
    ``is_tuning``: whether it only helps to choose a point of a grid.
    ``held_out``: whether its score is that of the rows held out of the training rows.

    Raises :class:`ConfigError` where such a score is never taken.
    """

    arm: str
    seed: int
    config: RunConfig
    folder: Path
    point: Mapping[str, Any] = field(default_factory=dict)
    is_tuning: bool = False
    held_out: bool = False

    def __post_init__(self) -> None:
        if self.held_out:
            self.config.guarantee.must_not_search()

    @property
    def has_begun(self) -> bool:
        """Whether its folder holds a run."""
        return (self.folder / "manifest.json").is_file()

    @property
    def finished(self) -> bool:
        return RunDirectory(self.folder).finished

    def __str__(self) -> str:
        values = [f"{key}={value}" for key, value in self.point.items()] if self.is_tuning else []
        return ", ".join([self.arm, *values, f"seed {self.seed}"])


Watch: TypeAlias = Callable[[Trial], "AbstractContextManager[Observer | None]"]
"""Entered around every run, finished ones included, to show progress. The observer that it yields observes the run."""


@dataclass(frozen=True)
class Ended:
    """A run that ended: after how many seconds, and why it is not finished, if it is not."""

    trial: Trial
    seconds: float
    stopped: str | None = None
    """The message of a run that cannot finish."""
    disk_failed: bool = False
    """Whether the disk is the reason, so that it can be resumed once that has room."""
    died: str | None = None
    """How its process ended, of one that did not end by itself."""

    @property
    def reason(self) -> str | None:
        """Why it is not finished, for files and pages that are handed on: without the way to its folder, which is its
        machine's. Messages name clients, so where who took part is a secret, the run's own log alone has it."""
        folder = self.trial.folder
        if self.stopped is not None and self.trial.config.guarantee.secret_turnout:
            return f"why it stopped is in {folder.name}/run.log: it would tell who took part, which is a secret"
        return self.died if self.stopped is None else self.stopped.replace(str(folder), folder.name)


def make(
    trial: Trial,
    device: str,
    observer: Observer | None,
    stop: threading.Event | None,
    given: Given = NOTHING,
) -> None:
    """Make a run, or go on with it; a finished one is left alone. Raises as :func:`rondo.run` does."""
    from rondo.runs import again, runner

    objects = {name: getattr(given, name) for name in ("train", "test", "clients", "model", "tokenizer")}
    common: dict[str, Any] = {"device": device, "observer": observer, "stop": stop, **objects}
    if not trial.has_begun:
        runner.run(trial.config, run_dir=trial.folder, **common)
    elif not trial.finished:
        # The user has named the code again, in the same configuration.
        with again.one_of_many(trial.folder):
            runner.resume(trial.folder, allow_code=True, **common)


def made(
    trials: Iterable[Trial],
    device: str,
    source: str,
    *,
    processes: int = 1,
    given: Given = NOTHING,
    watch: Watch | None = None,
    stop: threading.Event | None = None,
    end: float = math.inf,
    shows_rounds: bool = False,
) -> Generator[Ended, None, None]:
    """Make runs, or go on with them, and yield each as it ends; finished ones too.

    ``source``: the command, for faults.
    ``processes``: so many are made at a time, each in a process of its own, and ``watch`` is not entered.
    ``end``: none is started after it, by the monotonic clock.
    ``shows_rounds``: whether every round of a run in another process has its line on standard error.

    Raises :class:`ConfigError` of a run that is refused, and :class:`rondo.RunInterrupted` once ``stop`` is set.
    """
    if processes > 1:
        from rondo.study.parallel import in_processes

        several = list(trials)
        yield from (Ended(trial, 0.0) for trial in several if trial.finished)
        missing = [trial for trial in several if not trial.finished]
        yield from in_processes(missing, processes, device, source, stop=stop, end=end, shows_rounds=shows_rounds)
        return
    for trial in trials:
        if (began := time.monotonic()) > end:
            return
        stopped, disk_failed = None, False
        with watch(trial) if watch is not None else nullcontext() as observer:
            try:
                make(trial, device, observer, stop, given)
            except RunStopped as error:
                stopped, disk_failed = str(error), isinstance(error, DiskFailed)
        gc.collect()  # hooks keep a model in a cycle; free it before the next one is loaded
        yield Ended(trial, time.monotonic() - began, stopped, disk_failed)


def check_finished(trials: Iterable[Trial], device: str, source: str, given: Given = NOTHING) -> None:
    """Raise :class:`ConfigError` for a run that is there and was made from other rows, another model or other code than
    its configuration names today."""
    check_taken(((trial.folder, trial.config) for trial in trials), device, OTHER_FOLDER, source, given)


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
        """Raise :class:`ConfigError` as :func:`check_finished` does for those that are done."""
        there = (trial for trial in trials if trial.folder.exists() and self.done(trial))
        check_finished(there, device, source)

    def make_all(
        self,
        trials: Sequence[Trial],
        device: str,
        *,
        processes: int = 1,
        stop: threading.Event | None = None,
        end: float = math.inf,
    ) -> Iterator[tuple[Trial, float]]:
        """Make runs as :func:`made` does, and yield each with its seconds. One that cannot finish is noted, and counts
        with its last score; one that a full disk ends is not. Nothing is said of rounds: a search has hundreds of runs.
        Raises also :class:`DiskFailed`, and :class:`rondo.RunStopped` where a process was ended from outside."""
        from rondo.runs.watching.progress import Quiet

        once, source = {trial.folder: trial for trial in trials}.values(), str(self.folder)
        options: dict[str, Any] = {"processes": processes, "stop": stop, "end": end}
        with closing(made(once, device, source, watch=lambda trial: nullcontext(Quiet()), **options)) as ends:
            for ended in ends:
                if ended.died is not None:
                    raise RunStopped(f"{ended.trial}: {ended.died}; give it more memory, or run fewer at a time")
                if ended.disk_failed:
                    raise DiskFailed(ended.stopped)
                if ended.reason is not None:
                    self._note(ended.trial, ended.reason)
                yield ended.trial, ended.seconds

    def took(self, within: str = ".") -> list[float]:
        """Seconds of each run ``within`` the folder that is finished."""
        seconds = []
        for file in sorted((self.folder / within).rglob("summary.json")):
            with as_written(file.parent):
                seconds.append(float(RunDirectory(file.parent).read(file.name)["seconds"]["all"]))
        return seconds

    def _note(self, trial: Trial, reason: str) -> None:
        self.stopped[self._key(trial)] = reason
        content = json.dumps(self.stopped, indent=2, ensure_ascii=False).encode()
        with durable.written(self.folder):
            durable.write_all(self.folder, {"stopped.json": content})

    def _key(self, trial: Trial) -> str:
        return trial.folder.relative_to(self.folder).as_posix()


def place(folder: Path, arm: str, seed: int, config: RunConfig) -> Path:
    """The run directory in ``folder`` of a run with this configuration."""
    # Otherwise every published run would have another folder by now, and be made again.
    digest = hashlib.sha256(to_toml(config, later=False).encode()).hexdigest()[:8]
    return folder / f"{file_name(arm)}-seed-{seed}-{digest}"


def file_name(arm: str) -> str:
    """A method or arm in the name of a folder."""
    return re.sub(r"[^\w.-]+", "-", arm.replace(":", "."))
