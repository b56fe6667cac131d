"""A run into a directory that holds one already: refused, gone on with, or replaced. A finished one is taken as it is,
unless its rows, model or code have changed under the same names. Imports no torch until there is a run to look at."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rondo.config.checks import BUILTINS, own_names
from rondo.config.load import located
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, Problem
from rondo.records import durable
from rondo.records.directory import RunDirectory, as_written
from rondo.records.manifest import RESUME_ANYWAY, environment, must_equal, recorded, rows_of
from rondo.runs.assembling.given import NOTHING, Given

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
        now = now.changed("task", today=there.task.today)
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


if TYPE_CHECKING:
    from rondo.data.sources import Source

OTHER_FOLDER = Problem("--out", "bring back what the finished run had, or name another folder for new runs")

_MODEL = ("model_sha256", "model_config", "tokenizer_sha256", "code_sha256")
"""Keys of a manifest by which a model and the source of one's own code are known again."""
_ROWS = {"seed", "data", "task", "problem", "partition", "model", "privacy"}
"""Sections from which the rows of clients follow, as the model's tokenizer reads them, and their units of privacy."""
_NOT_THE_START = {"rounds", "evaluation", "simulation", "track"}
"""Sections from which nothing of a run's start follows. A model's does from most: a new head is drawn from the seed."""


def check_taken(
    runs: Iterable[tuple[Path, RunConfig]], device: str, remedy: Problem, source: str, given: Given = NOTHING
) -> None:
    """Raise :class:`ConfigError` for the first of ``runs`` whose rows, model or code are not those of today, with every
    difference and ``remedy``. A run costs the time in which it would begin; rows that several share are read once.

    ``runs``: folders, and the configuration by which each is taken.
    ``device``: as for :func:`rondo.run`.
    ``source``: the command, for faults.

    Not compared are rows and models that come with Rondo, whose version is in the manifest, and digests that a run
    lacks because another version wrote it, or because only its records are there (docs/results/runs).
    """
    today = _Today(given, device)
    for run_dir, config in runs:
        directory = RunDirectory(run_dir)
        with as_written(run_dir, remedy.path):
            then = directory.manifest()
            if (run_dir / "partition.json").exists():
                then["partition"] = _rows_of(directory.read("partition.json"))
            day = then.get("config", {}).get("task", {}).get("today")
            other_library = then["versions"].get("transformers") != environment()["versions"]["transformers"]
        if config.task.today is None:  # a run is of its day, whenever it is taken
            config = config.changed("task", today=day)
        now = _both(today.inputs(config), then)
        if other_library:  # whose version says what else a model's configuration has
            now.pop("model_config", None)
        must_equal(then, now, whatever=False, remedy=remedy, source=f"{source}: {run_dir}")


class _Today:
    """Reads the rows, models and code that configurations name today, each combination once."""

    def __init__(self, given: Given, device: str) -> None:
        self._given, self._device = given, device
        self._known: dict[str, dict[str, Any]] = {}
        self._sources: dict[str, Source] = {}

    def inputs(self, config: RunConfig) -> dict[str, Any]:
        """The keys of a manifest, and ``partition``, that tell rows, model and code."""
        from rondo.runs.launch import started_from

        model, data = config.model, config.data
        start: dict[str, Any] = started_from(config)
        if own_names(config) or not model.name.startswith("builtin:") or model.vectors is not None:
            return self._once(config.model_dump_json(exclude=_NOT_THE_START), self._with_model, config) | start
        if data.source not in BUILTINS or data.test_source is not None or data.more_tests:
            return self._once(config.model_dump_json(include=_ROWS), self._with_rows, config) | start
        return start

    def _once(self, key: str, read: Callable[[RunConfig], dict[str, Any]], config: RunConfig) -> dict[str, Any]:
        if key not in self._known:
            self._known[key] = read(config)
        return self._known[key]

    def _with_model(self, config: RunConfig) -> dict[str, Any]:
        from rondo.runs.assembling.assemble import assemble

        assembly = assemble(config, self._device, given=self._given)
        identity = assembly.identity()
        told = {key: identity[key] for key in _MODEL if key in identity}
        return {**told, "partition": _rows_of(assembly.population.report)}

    def _with_rows(self, config: RunConfig) -> dict[str, Any]:
        from rondo.data.sources import load
        from rondo.runs.assembling.assemble import deal

        drawn = {"seed"} if config.data.source in BUILTINS else set()
        key = config.model_dump_json(include=_ROWS - {"seed"} | drawn)
        if key not in self._sources:
            self._sources[key] = load(config, self._given.train, self._given.test, self._given.clients)
        return {"partition": _rows_of(deal(config, self._given, self._sources[key])[0].report)}


def _rows_of(partition: Mapping[str, Any]) -> dict[str, Any]:
    return {**rows_of(partition), "classes": partition.get("classes")}


def _both(now: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of ``now`` that ``then`` has too, with a value."""
    return {
        key: _both(value, then[key]) if isinstance(value, Mapping) and isinstance(then[key], Mapping) else value
        for key, value in now.items()
        if then.get(key) is not None
    }
