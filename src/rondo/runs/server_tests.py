"""The test sets of a federation's server, which has files of its own and no rows of clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from rondo.config.schema import RunConfig
from rondo.data.client_rows import other_rows
from rondo.data.files.tables import Rows
from rondo.data.population import Population, nothing_left
from rondo.runs.assemble import tried
from rondo.runs.assembly import Assembly
from rondo.tasks.task import Example, Task

TEST, MORE = "test_examples_sha256", "more_tests"
"""The keys of ``partition.json`` by which test sets are known again."""


def files_of(config: RunConfig) -> dict[str, str]:
    """The files of the test set and of more ones, by key."""
    files = {} if config.data.test_source is None else {"data.test_source": config.data.test_source}
    return files | {f"data.more_tests.{name}": file for name, file in config.data.more_tests.items()}


def read(config: RunConfig, labels: tuple[str, ...]) -> dict[str, Rows]:
    """The rows of these files, by key. Raises :class:`ConfigError`."""
    return {key: other_rows(config, file, labels, key=key) for key, file in files_of(config).items()}


def tested(assembly: Assembly, rows: Mapping[str, Rows]) -> Assembly:
    """The run with test sets of ``rows``, on which its network is tried, and their digests in its report. Raises
    :class:`ConfigError`, where no example is left of a set too."""
    encoded = {key: tuple(assembly.task.encode(of_file)) for key, of_file in rows.items()}
    for key, examples in encoded.items():
        if not examples:
            name = "test set" if key == "data.test_source" else f"test set {key.removeprefix('data.more_tests.')!r}"
            raise nothing_left(assembly.config, assembly.task, len(rows[key]), f", and they are the whole {name}")
    test = encoded.get("data.test_source", ())
    more = {name: encoded[f"data.more_tests.{name}"] for name in assembly.config.data.more_tests}
    digests: dict[str, Any] = {TEST: _digest(assembly.task, test)}
    digests[MORE] = {name: {"examples_sha256": _digest(assembly.task, of_set)} for name, of_set in more.items()}
    return tried(replace(assembly, population=Population({}, test, digests, more)))


def _digest(task: Task, examples: Sequence[Example]) -> str:
    store = task.store()
    store.add(examples)
    return store.sha256()
