"""Checks of a task's rows. They need only the rows, so they run before any model or tokenizer is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rondo.config.inputs import TaskConfig, plain_name

Row: TypeAlias = Mapping[str, Any]

_LARGEST = (2 - 2**-23) * 2.0**127
"""The largest number of float32."""


@dataclass(frozen=True)
class RowProblem:
    """A row that cannot be used, and the reason."""

    row: int
    """Its 0-based number in its source."""
    column: str
    reason: str

    def __str__(self) -> str:
        return self.at(from_zero(self.row))

    def at(self, place: str) -> str:
        """The problem of the row at ``place``, which names it as its source counts it."""
        return f"{place}, column {self.column!r}: {self.reason}"


class UnusableRows(Exception):
    """Rows that a task cannot predict for."""

    def __init__(self, problems: Sequence[RowProblem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = tuple(problems)


RowCheck: TypeAlias = Callable[[Row, int], RowProblem | None]
"""Given a row and its number, returns the row's problem, or None if the task can use it."""


def from_zero(number: int) -> str:
    """The place of a row that is in no file and no table with a name."""
    return f"row {number} (counted from 0)"


def row_check(task: TaskConfig, labels: Sequence[str], owner: str | None = None) -> RowCheck:
    """The check of a task's rows.

    ``labels``: the known classes, if the task has classes.
    ``owner``: the column that names each row's client, if rows are dealt by it.
    """
    required = [name for _, name, needed in columns(task) if needed]
    optional = [name for _, name, needed in columns(task) if not needed]
    known_labels = frozenset(labels)

    def check(row: Row, number: int) -> RowProblem | None:
        for column in required:
            if (problem := text_problem(row, number, column)) is not None:
                return problem
        for column in optional:
            if column not in row:
                return _no_column(row, number, column)
        if task.label is not None:
            if (problem := value_problem(row, number, task.label)) is not None:
                return problem
            if known_labels and value_name(row[task.label]) not in known_labels:
                reason = f"unknown label {row[task.label]!r:.60}; known: {', '.join(labels[:20])}"
                return RowProblem(number, task.label, reason)
        return value_problem(row, number, owner) if owner is not None else None

    return check


def columns(task: TaskConfig) -> list[tuple[str, str, bool]]:
    """The columns of the input as (configuration key, column name, whether it must hold text). A prompt's columns after
    the first may be empty; a conversation and answers are lists and a picture an array, which the task checks."""
    text, prompt, response = (_several(value) for value in (task.text, task.prompt, task.response))
    return [
        *(("task.text", name, True) for name in text),
        *(("task.prompt", name, place == 0) for place, name in enumerate(prompt)),
        *(("task.response", name, True) for name in response),
        *(("task.messages", name, False) for name in _several(task.messages)),
        *(("task.context", name, True) for name in _several(task.context)),
        *(("task.question", name, True) for name in _several(task.question)),
        *(("task.answers", name, False) for name in _several(task.answers)),
        *(("task.answer_start", name, False) for name in _several(task.answer_start)),
        *(("task.tokens", name, False) for name in _several(task.tokens)),
        *(("task.tags", name, False) for name in _several(task.tags)),
        *(("task.spans", name, False) for name in _several(task.spans)),
        *(("task.choices", name, False) for name in _several(task.choices)),
        *(("task.answer", name, False) for name in _several(task.answer)),
        *(("task.image", name, False) for name in _several(task.image)),
        *(("task.features", name, False) for name in _several(task.features)),
        *(("task.target", name, False) for name in _several(task.target)),
    ]


def _several(value: str | Iterable[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


def text_problem(row: Row, number: int, column: str) -> RowProblem | None:
    """The problem with the text in ``column``, or None. It may be missing, no text, empty, or invalid Unicode."""
    if column not in row:
        return _no_column(row, number, column)
    value = row[column]
    if not isinstance(value, str):
        return RowProblem(number, column, f"expected text, got {value!r:.60}")
    if not value.strip():
        return RowProblem(number, column, "the text is empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        return RowProblem(number, column, "the text has a lone surrogate and is no valid Unicode")
    return None


def value_problem(row: Row, number: int, column: str) -> RowProblem | None:
    """The problem with a class or client name in ``column``, or None. It may be missing (also as NaN), empty, invalid
    Unicode, or several values in one."""
    if column not in row:
        return _no_column(row, number, column)
    value = row[column]
    if isinstance(value, list | tuple | dict | set | bytes):
        return RowProblem(number, column, f"expected text or a number, got {value!r:.60}")
    if is_missing(value) or not str(value).strip():
        return RowProblem(number, column, "the value is missing")
    return text_problem({column: str(value)}, number, column)


def number_problem(row: Row, number: int, column: str) -> RowProblem | None:
    """The problem with the number in ``column``, or None. It may be text that reads as a number, must be finite, and
    must not be beyond float32."""
    try:
        value = math.nan if isinstance(row[column], bool) else float(row[column])
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        return RowProblem(number, column, f"expected a finite number, got {row[column]!r:.60}")
    if abs(value) > _LARGEST:
        return RowProblem(number, column, f"{row[column]!r:.60} is beyond float32: use another unit")
    return None


def is_missing(value: Any) -> bool:
    """Whether a cell is empty: None, or NaN, as tables without None have it."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def value_name(value: Any) -> str:
    """The name of a class or client: ``neg`` for " neg " too (:func:`rondo.config.inputs.plain_name`)."""
    return plain_name(value_text(value))


def value_text(value: Any) -> str:
    """A cell as text. A whole float becomes an integer: pandas makes floats of integers in a column with gaps, and 1.0
    and 1 are one class."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _no_column(row: Row, number: int, column: str) -> RowProblem:
    return RowProblem(number, column, f"no such column; there are: {', '.join(map(str, row))}")
