"""Finished runs that are taken as they are: their configuration names rows, a model and code, and these may have
changed under the same names. Imports no torch until there is a run to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rondo.config.checks import BUILTINS, own_names
from rondo.config.schema import RunConfig
from rondo.errors import Problem
from rondo.records.directory import RunDirectory, as_written
from rondo.records.manifest import environment, must_equal, rows_of
from rondo.runs.given import NOTHING, Given

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
            config = config.model_copy(update={"task": config.task.model_copy(update={"today": day})})
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
        from rondo.runs.assemble import assemble

        assembly = assemble(config, self._device, given=self._given)
        identity = assembly.identity()
        told = {key: identity[key] for key in _MODEL if key in identity}
        return {**told, "partition": _rows_of(assembly.population.report)}

    def _with_rows(self, config: RunConfig) -> dict[str, Any]:
        from rondo.data.sources import load
        from rondo.runs.assemble import deal

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
