"""Checks of a task's rows. They need only the rows, so they run before any model or tokenizer is loaded."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from rondo.config.inputs import TaskConfig, cell_text, plain_name
from rondo.config.task_kinds import PAIR_KINDS

Row: TypeAlias = Mapping[str, Any]

_LARGEST = (2 - 2**-23) * 2.0**127
"""The largest number of float32."""
_TRUTHS = {"0": False, "1": True, "false": False, "true": True}
"""Cells of a column that is a label."""


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
    optional = [name for key, name, needed in columns(task) if not needed and key not in MAY_LACK]
    row_labels, known_labels = RowLabels.of(task), frozenset(labels)
    prompts = _several(task.prompt)[1:]

    def check(row: Row, number: int) -> RowProblem | None:
        for column in required:
            if (problem := text_problem(row, number, column)) is not None:
                return problem
        for column in optional:
            if column not in row:
                return _no_column(row, number, column)
        for column in prompts:  # may be empty, or a number
            empty = is_missing(row[column]) or row[column] == "" or str(row[column]).isspace()
            if not empty and (problem := value_problem(row, number, column)) is not None:
                return problem
        if row_labels.columns:
            if (problem := row_labels.problem(row, number)) is not None:
                return problem
            unknown = [name for name in row_labels.names(row) if name not in known_labels] if known_labels else []
            if unknown:
                reason = f"unknown label {unknown[0]!r:.60}; known: {', '.join(labels[:20])}"
                return RowProblem(number, row_labels.columns[0], reason)
        return value_problem(row, number, owner) if owner is not None else None

    return check


def columns(task: TaskConfig) -> list[tuple[str, str, bool]]:
    """The columns of the input as (configuration key, column name, whether it must hold text). A prompt's columns after
    the first may be empty; a conversation and answers are lists and a picture an array, which the task checks."""
    text, prompt, response = (_several(value) for value in (task.text, task.prompt, task.response))
    return [
        *(("task.text", name, True) for name in text),
        *(("task.prompt", name, place == 0 and task.kind not in PAIR_KINDS) for place, name in enumerate(prompt)),
        *(("task.response", name, True) for name in response),
        *(("task.messages", name, False) for name in _several(task.messages)),
        *(("task.chosen", name, False) for name in _several(task.chosen)),
        *(("task.rejected", name, False) for name in _several(task.rejected)),
        *(("task.context", name, True) for name in _several(task.context)),
        *(("task.question", name, True) for name in _several(task.question)),
        *(("task.answers", name, False) for name in _several(task.answers)),
        *(("task.answer_start", name, False) for name in _several(task.answer_start)),
        *(("task.tokens", name, False) for name in _several(task.tokens)),
        *(("task.tags", name, False) for name in _several(task.tags)),
        *(("task.spans", name, False) for name in _several(task.spans)),
        *(("task.anchor", name, True) for name in _several(task.anchor)),
        *(("task.positive", name, True) for name in _several(task.positive)),
        *(("task.negative", name, False) for name in _several(task.negative)),
        *(("task.score", name, False) for name in _several(task.score)),
        *(("task.choices", name, False) for name in _several(task.choices)),
        *(("task.answer", name, False) for name in _several(task.answer)),
        *(("task.image", name, False) for name in _several(task.image)),
        *(("task.features", name, False) for name in _several(task.features)),
        *(("task.target", name, False) for name in _several(task.target)),
    ]


MAY_LACK = ("task.negative", "task.score")
"""Keys of columns that some rows have: pairs to train on have no score, and pairs with a score no negative."""


def _several(value: str | Iterable[str] | None) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value or ())


@dataclass(frozen=True)
class RowLabels:
    """Reads the labels of rows from ``columns``: a single one, or several of 0 and 1, whose names are the labels."""

    columns: tuple[str, ...]
    several: bool = False
    """Whether a row may have several labels, or none."""
    separator: str | None = None
    """Text between the labels of a cell. Without one, several are a list, or a list written as JSON or Python has it,
    as in a CSV file."""

    @classmethod
    def of(cls, task: TaskConfig) -> Self:
        return cls(tuple(task.label_columns), task.several_labels, task.label_separator)

    def names(self, row: Row) -> tuple[str, ...]:
        """The labels of a row without a :meth:`problem`, each once."""
        if len(self.columns) > 1:
            return tuple(name for name in self.columns if _TRUTHS[value_name(row[name]).casefold()])
        return tuple(dict.fromkeys(map(value_name, self.cells(row))))

    def strata(self, rows: Sequence[Row]) -> list[str] | None:
        """The label of each row, or all its labels in one name, for samples that keep their shares. None without
        labels."""
        return [", ".join(sorted(self.names(row))) for row in rows] if self.columns else None

    def cells(self, row: Row) -> Sequence[Any]:
        """The labels of a row as they are written, where they are in a single column."""
        value = row[self.columns[0]]
        return [value] if not self.several else self._parts(value) or ()

    def problem(self, row: Row, number: int) -> RowProblem | None:
        """The reason why the labels of row ``number`` cannot be read, or None."""
        if len(self.columns) > 1:
            return next(filter(None, (_truth_problem(row, number, column) for column in self.columns)), None)
        column = self.columns[0]
        if column not in row or not self.several:
            if as_list(row.get(column)) is not None:
                reason = f"expected one label, got {row[column]!r:.60}: set task.multi_label = true"
                return RowProblem(number, column, reason)
            return value_problem(row, number, column)
        parts = self._parts(row[column])
        if parts is None:
            reason = f"expected a list of labels, got {row[column]!r:.60}: set task.label_separator for joined ones"
            return RowProblem(number, column, reason)
        return next(filter(None, (value_problem({column: part}, number, column) for part in parts)), None)

    def _parts(self, value: Any) -> Sequence[Any] | None:
        """The labels in a cell that may have several; None if it is no list and nothing separates them."""
        if (found := as_list(value)) is not None:
            return found
        if self.separator is not None:
            parts = [] if is_missing(value) else cell_text(value).split(self.separator)
            return [part for part in parts if part.strip()]
        return _written_list(value)


def as_list(value: Any) -> list[Any] | None:
    """A cell with a list as a list; None for another."""
    if hasattr(value, "tolist"):  # NumPy's
        value = value.tolist()
    return list(value) if isinstance(value, list | tuple | set) else None


def _truth_problem(row: Row, number: int, column: str) -> RowProblem | None:
    if (problem := value_problem(row, number, column)) is not None:
        return problem
    known = value_name(row[column]).casefold() in _TRUTHS
    return None if known else RowProblem(number, column, f"expected 0 or 1, got {row[column]!r:.60}")


def _written_list(value: Any) -> Sequence[Any] | None:
    """The list that a text shows in JSON or Python, which agree on lists of texts and numbers."""
    try:
        found = ast.literal_eval(value.strip())
    except (AttributeError, ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return found if isinstance(found, list) else None


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
    if hasattr(value, "__len__") and not isinstance(value, str):  # a list, an array, bytes
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
    """Whether a cell is empty: None, or what tables without None have: NaN of any library, NaT, pandas' NA."""
    if value is None or hasattr(value, "__len__"):  # arrays compare number by number
        return value is None
    try:
        return bool(value != value)
    except TypeError:  # pandas' NA is neither true nor false
        return True


value_name = plain_name
"""The name of the class, client or person in a cell."""


def _no_column(row: Row, number: int, column: str) -> RowProblem:
    return RowProblem(number, column, f"no such column; there are: {', '.join(map(str, row))}")
