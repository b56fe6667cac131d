"""Finished runs that are taken as they are: their configuration names rows, a model and code, and these may have
changed under the same names. Imports no torch until there is a run to look at."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rondo.config.checks import BUILTINS, own_names
from rondo.config.schema import RunConfig
from rondo.errors import Problem
from rondo.runs.given import NOTHING, Given
from rondo.runs.storage.directory import RunDirectory, as_written
from rondo.runs.storage.manifest import must_equal, rows_of

OTHER_FOLDER = Problem("--out", "bring back what the finished run had, or name another folder for new runs")

_MODEL = ("model_sha256", "model_config", "tokenizer_sha256", "code_sha256")
"""Keys of a manifest by which a model and the source of one's own code are known again."""


def check_taken(
    runs: Iterable[tuple[Path, RunConfig]], device: str, remedy: Problem, source: str, given: Given = NOTHING
) -> None:
    """Raise :class:`ConfigError` for the first of ``runs`` whose rows, model or code are not those of today, with every
    difference and ``remedy``. What several runs have in common is read once.

    ``runs``: folders, and the configuration by which each is taken.
    ``device``: as for :func:`rondo.run`.
    ``source``: the command, for faults.

    Not compared are rows and models that come with Rondo, whose version is in the manifest, and digests that a run
    lacks because another version wrote it, or because only its records are there (docs/results/runs).
    """
    known: dict[str, dict[str, Any]] = {}
    for run_dir, config in runs:
        directory = RunDirectory(run_dir)
        with as_written(run_dir):
            parts = directory.manifest()
            if (run_dir / "partition.json").exists():
                parts["partition"] = rows_of(directory.read("partition.json"))
            today = parts.get("config", {}).get("task", {}).get("today")
        if config.task.today is None:  # a run is of its day, whenever it is taken
            config = config.model_copy(update={"task": config.task.model_copy(update={"today": today})})
        then = {key: parts[key] for key in ("partition", *_MODEL) if key in parts}
        now = {**_rows(config, given, known), **_model(config, given, device, known)}
        must_equal(then, _both(now, then), whatever=False, remedy=remedy, source=f"{source}: {run_dir}")


def _rows(config: RunConfig, given: Given, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    data = config.data
    if data.source in BUILTINS and data.test_source is None and not data.more_tests:
        return {}
    from rondo.runs.assemble import deal

    key = config.model_dump_json(include={"seed", "data", "task", "problem", "partition"})
    if key not in known:
        known[key] = {"partition": rows_of(deal(config, given)[0].report)}
    return known[key]


def _model(config: RunConfig, given: Given, device: str, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    names = own_names(config)
    if config.model.name.startswith("builtin:") and config.model.vectors is None and not names:
        return {}
    from rondo.runs.assemble import assemble

    key = json.dumps([config.model_dump_json(include={"model", "task"}), names])
    if key not in known:
        identity = assemble(config, device, given=given).identity()
        known[key] = {key: identity[key] for key in _MODEL if key in identity}
    return known[key]


def _both(now: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of ``now`` that ``then`` has too, with a value."""
    return {
        key: _both(value, then[key]) if isinstance(value, Mapping) and isinstance(then[key], Mapping) else value
        for key, value in now.items()
        if then.get(key) is not None
    }
