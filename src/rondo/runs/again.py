"""A run into a directory that holds one already: it is refused, gone on with, or replaced."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from rondo.config.load import located
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, Problem
from rondo.records import durable
from rondo.records.directory import RunDirectory
from rondo.records.manifest import RESUME_ANYWAY, must_equal, recorded
from rondo.runs.given import Given

_FILES = (
    "manifest.json",  # first: without it the folder no longer counts as a run
    "summary.json",
    "checkpoint",
    "metrics.jsonl",
    "config.toml",
    "partition.json",
    "partition.png",
    "partition-samples.png",
    "curve.png",
    "adapter",
    "adapter-best",
    "federation.json",
    "sites.json",
    "run.log",
    "tracking.json",
    "tensorboard",
    "wandb",
)
"""Everything that a run writes."""

REPLACE = Problem("overwrite", "to replace the run, set overwrite=True in place of resume=True; or name another folder")


def check_free(run_dir: str | Path | None, *, overwrite: bool) -> None:
    """Raise :class:`ConfigError`, in the words of a program, if ``run_dir`` cannot be made or, unless ``overwrite``,
    holds a run."""
    place = repr(str(run_dir))
    ways = f"go on with it by rondo.resume({place}) or resume=True, replace it by overwrite=True, or name another"
    RunDirectory.check(run_dir, key="run_dir", remedy=ways, held=overwrite)


def check_free_to_commands(run_dir: str | Path | None, *, overwrite: bool) -> None:
    """The same in the words of the command line."""
    place = shlex.quote(str(run_dir))
    ways = f"go on with it by rondo resume {place}, replace it by --overwrite, or name another folder"
    RunDirectory.check(run_dir, remedy=ways, held=overwrite)


def check_flags(run_dir: str | Path | None, *, resume: bool, overwrite: bool) -> None:
    """Raise :class:`ConfigError` unless ``resume`` and ``overwrite`` say one thing about one directory."""
    problems = []
    if resume and overwrite:
        problems.append(Problem("overwrite", "it replaces the run that resume goes on with: give one of the two"))
    elif run_dir is None and (resume or overwrite):
        problems.append(Problem("run_dir", f"{'resume' if resume else 'overwrite'} needs it: name the run's folder"))
    if problems:
        raise ConfigError(problems, "rondo.run")


def held(run_dir: str | Path | None) -> RunDirectory | None:
    """The run that ``run_dir`` holds; None if it holds none."""
    there = run_dir is not None and (Path(run_dir) / "manifest.json").is_file()
    return RunDirectory.open(run_dir) if there and run_dir is not None else None


def changes(directory: RunDirectory, config: RunConfig, given: Given) -> Sequence[str]:
    """The overrides with which the run in ``directory`` goes on as ``config`` has it: its number of rounds, and where
    clients train. Raises :class:`ConfigError` with every other key in which they differ.

    Options that the user left open are stored as the data and the day settled them, so ``config`` is compared after
    the data settled it, and to a run of any day.
    """
    from rondo.data.client_rows import resolved
    from rondo.data.sources import load as load_rows

    given.check(config)
    there, simulation = directory.config(), config.simulation
    now = located(resolved(config, load_rows(config, given.train, given.test, given.clients)))
    if now.task.today is None:
        now = now.model_copy(update={"task": now.task.model_copy(update={"today": there.task.today})})
    now = now.model_copy(update={"rounds": there.rounds})
    then = {"config": recorded(there)}
    must_equal(then, {"config": recorded(now)}, whatever=False, remedy=REPLACE, source="rondo.run")
    sets = [f"rounds={config.rounds}"] if config.rounds != there.rounds else []
    if simulation.engine != there.simulation.engine:
        sets.append(f'simulation.engine="{simulation.engine}"')
    if simulation.workers is not None and simulation.workers != there.simulation.workers:
        sets.append(f"simulation.workers={simulation.workers}")
    return sets


@contextlib.contextmanager
def one_of_many(run_dir: str | Path) -> Iterator[None]:
    """Within, a refusal to go on with the run in ``run_dir`` names it. Where its remedy is the option to resume
    anyway, which a command that makes many runs has not, it is another."""
    message = f"go on as it was begun, or remove {shlex.quote(str(run_dir))}, and the run is made anew"
    try:
        yield
    except ConfigError as error:
        problems = [Problem("--out", message) if problem == RESUME_ANYWAY else problem for problem in error.problems]
        raise ConfigError(problems, str(run_dir)) from None


def clear(run_dir: str | Path) -> None:
    """Remove the run that ``run_dir`` holds, or what is left of one, and nothing else that lies there. Raises
    :class:`ConfigError` if another process writes it."""
    folder = Path(run_dir)
    if not folder.is_dir():
        return
    with durable.locked(folder) as alone, durable.written(folder):
        if not alone:
            message = f"another process is running in {str(folder)!r}: wait for its end, or name another folder"
            raise ConfigError.at("run_dir", message, "rondo.run")
        for name in _FILES:
            durable.remove(folder / name)
        durable.sync(folder)
