"""Columns that the configuration names and rows lack. All are found at once, before anything else is said of rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rondo.config.inputs import TaskConfig
from rondo.config.schema import RunConfig
from rondo.data.sources import Source
from rondo.errors import ConfigError, Problem
from rondo.tasks.row_checks import MAY_LACK, Row, columns


def check_columns(config: RunConfig, source: Source) -> None:
    """Raise :class:`ConfigError` with every named column that no training row or no test row has, or no row of a
    client with rows of its own. ``config``: see :func:`rondo.data.client_rows.resolved`."""
    by_column = config.partition.kind == "natural" and source.clients is None
    owner = config.partition.column if by_column else None
    trained = source.clients if source.clients is not None else {"": source.train or []}
    tested = source.test_clients if source.test_clients is not None else {"": source.test or []}
    problems = lacking(config.task, owner, trained)
    of_tests = lacking(config.task, None, tested, " in the test rows")
    for name, rows in source.more_tests.items():
        of_tests += lacking(config.task, None, {"": rows}, f" in data.more_tests.{name}")
    known = {problem.path for problem in problems}
    if problems := [*problems, *(problem for problem in of_tests if problem.path not in known)]:
        raise ConfigError(problems)


def lacking(task: TaskConfig, owner: str | None, parts: Mapping[str, Sequence[Row]], where: str = "") -> list[Problem]:
    """Every named column that no row of a part has. It is one fault, not one per row or part.

    ``owner``: the column that names each row's client.
    ``parts``: the rows of each client by its name, or all under an empty one.
    ``where``: says which rows they are, with a blank before.
    """
    asked = [(key, name) for key, name, _ in columns(task) if key not in MAY_LACK]
    named = [*(("task.label", name) for name in task.label_columns), ("partition.column", owner), *asked]
    there = {part: rows for part, rows in parts.items() if rows}
    problems = []
    for key, column in named:
        without = [part for part, rows in there.items() if not any(column in row for row in rows)]
        if column is not None and without:
            whose = f" of {without[0]!r}" if len(without) < len(there) else ""
            existing = ", ".join(map(str, there[without[0]][0]))
            problems.append(Problem(key, f"no column {column!r}{where}{whose}; there are: {existing}"))
    return problems
