"""Examples that belong together: those of one row, of all rows of one person, or of a block of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, overload

from rondo.config.schema import RunConfig
from rondo.data.files.tables import Rows
from rondo.errors import ConfigError
from rondo.tasks.row_checks import value_name, value_problem
from rondo.tasks.task import Example, Task


class Units(Sequence[Example]):
    """Examples of a client, each in one unit: of protection, or of a pass over a part of them.

    ``examples``: all of them.
    ``unit``: the number of each one's unit, from 0 on.
    ``rows``: the number of rows that they are of; None: each is of its own.
    """

    def __init__(self, examples: Sequence[Example], unit: Sequence[int], rows: int | None = None) -> None:
        self._examples, self._rows = tuple(examples), rows
        places: list[list[int]] = [[] for _ in range(max(unit, default=-1) + 1)]
        for place, number in enumerate(unit):
            places[number].append(place)
        self.places: Sequence[Sequence[int]] = [of_one for of_one in places if of_one]
        """The places of each unit's examples."""

    @staticmethod
    def of(examples: Sequence[Example]) -> Sequence[Sequence[int]]:
        """The places of each unit's examples; each example by itself where nothing says otherwise."""
        return examples.places if isinstance(examples, Units) else [[i] for i in range(len(examples))]

    @staticmethod
    def rows_of(examples: Sequence[Example]) -> int:
        """The number of rows that ``examples`` are of."""
        rows = examples._rows if isinstance(examples, Units) else None
        return len(examples) if rows is None else rows

    def __len__(self) -> int:
        return len(self._examples)

    @overload
    def __getitem__(self, place: int) -> Example: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Example]: ...
    def __getitem__(self, place: int | slice) -> Example | Sequence[Example]:
        return self._examples[place]


@dataclass(frozen=True)
class Parts:
    """A client's rows, by their places: ``blocks`` to train on, which stay together, and those ``held_back``."""

    blocks: Sequence[Sequence[int]]
    held_back: Sequence[int]

    def numbers(self, by_row: Sequence[range]) -> tuple[list[int], list[int], list[int]]:
        """The numbers of the training and of the validation examples, and the block of each training example.
        ``by_row``: the numbers of each row's examples."""
        owner = {n: number for number, block in enumerate(self.blocks) for place in block for n in by_row[place]}
        return sorted(owner), sorted(n for i in self.held_back for n in by_row[i]), [owner[n] for n in sorted(owner)]


Parting: TypeAlias = Callable[[str, Rows, Sequence[str], float | None], Parts]
"""Gives the parts of a client's rows, by its id, in place of the run's seed. The texts are digests of each row's
examples, and the number is the largest share to hold back; None for the client's test rows, to which nothing is
trained."""


def with_examples(task: Task, rows: Rows, by_row: Sequence[range]) -> Rows:
    """Those of a client's ``rows`` that have examples. Rows without a target have none. ``by_row``: the numbers of each
    one's examples."""
    return rows if len(by_row) == len(rows) else [row for row in rows if task.encode([row])]


def named_in(column: str | None, key: str, rows: Rows) -> list[str] | None:
    """The name in ``column`` of each of ``rows``, such as its person; None without one. ``key``: names the column.
    Raises :class:`ConfigError` where a row does not say whose it is."""
    if column is None:
        return None
    for place, row in enumerate(rows):
        if (problem := value_problem(row, place, column)) is not None:
            known = f"; there are: {', '.join(map(str, row))}" if column not in row else ""
            message = f"a row does not say whose it is: {problem.reason}{known}: name a column that every row has"
            raise ConfigError.at(key, message)
    return [value_name(row[column]) for row in rows]


def persons_of(column: str | None, key: str, task: Task, rows: Rows, by_row: Sequence[range]) -> list[str] | None:
    """The person that ``column`` names for each of a client's rows that has examples; None without one.

    ``key``: names the column.
    ``rows``: the client's rows.
    ``by_row``: the numbers of each row's examples, in the order of those ``rows`` that have some.

    Raises :class:`ConfigError` where a row does not say whose it is, one without examples too.
    """
    everybody = named_in(column, key, rows)
    whole = everybody is None or len(by_row) == len(rows)
    return everybody if whole else named_in(column, key, with_examples(task, rows, by_row))


def units_of(
    config: RunConfig, persons: Sequence[str] | None, by_row: Sequence[range], train: Sequence[int]
) -> list[int] | None:
    """The unit of each training example of a client whose rows are protected: its person, else its row. None where
    each example is a unit of its own.

    ``persons``, ``by_row``: see :func:`persons_of`.
    ``train``: the numbers of its training examples.
    """
    if not config.guarantee.of_rows or (persons is None and all(len(numbers) == 1 for numbers in by_row)):
        return None
    persons = [str(place) for place in range(len(by_row))] if persons is None else persons
    owner = {number: person for person, numbers in zip(persons, by_row, strict=True) for number in numbers}
    unit = {person: place for place, person in enumerate(dict.fromkeys(persons))}
    return [unit[owner[number]] for number in train]
