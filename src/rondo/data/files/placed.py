"""Rows that know where they are in what they were read from, so that a message names them as their file counts them."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rondo.tasks.row_checks import from_zero

Places: TypeAlias = Callable[[int], str]
"""The place of a row by its number among the rows, from 0."""


class PlacedRows(list[dict[str, Any]]):
    """Rows, and where each is. A part of them, or another order, is a plain list. ``places``: told a row's number."""

    def __init__(self, rows: Iterable[dict[str, Any]], places: Places) -> None:
        super().__init__(rows)
        self.places = places


@dataclass(frozen=True)
class Lines:
    """Rows of a file of lines, which are counted from 1, the header's too. ``lines``: where each row begins."""

    file: str
    lines: Sequence[int]

    def __call__(self, number: int) -> str:
        return f"{self.file}, line {self.lines[number]}"


@dataclass(frozen=True)
class Counted:
    """Rows of a file without lines, or whose lines are not its rows. They are counted from 1."""

    file: str

    def __call__(self, number: int) -> str:
        return f"{self.file}, row {number + 1}"


@dataclass(frozen=True)
class Indexed:
    """Rows of a table in memory. ``table``: an expression that is indexed: ``train``, ``clients['north'].iloc``."""

    table: str

    def __call__(self, number: int) -> str:
        return f"{self.table}[{number}]"


@dataclass(frozen=True)
class _Joined:
    """Rows of several sources, one after another. ``ends``: the number of rows up to each one's end."""

    parts: Sequence[Places]
    ends: Sequence[int]

    def __call__(self, number: int) -> str:
        part = bisect.bisect_right(self.ends, number)
        return self.parts[part](number - (self.ends[part - 1] if part else 0))


def joined(parts: Sequence[list[dict[str, Any]]]) -> PlacedRows:
    """The rows of several files, one after another."""
    ends = list(itertools.accumulate(map(len, parts)))
    return PlacedRows(itertools.chain(*parts), _Joined([places_of(part) for part in parts], ends))


def places_of(rows: Sequence[Any], where: str = "") -> Places:
    """The place of each of ``rows``. ``where``: begins the place of rows that do not know it themselves."""
    if isinstance(rows, PlacedRows):
        return rows.places
    return from_zero if not where else lambda number: f"{where}{from_zero(number)}"
