"""The clients of a run, held as numbers of examples in a store that all of them share."""

from __future__ import annotations

import copy
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from rondo.algorithm import Client
from rondo.data.units import Units
from rondo.tasks.task import Example, Store


class Stored(Sequence[Example]):
    """Some examples of a store. Each access makes a new object."""

    __slots__ = ("_numbers", "_store")

    def __init__(self, store: Store, numbers: Iterable[int]) -> None:
        self._store, self._numbers = store, array("I", numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, place: int) -> Example: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Example]: ...
    def __getitem__(self, place: int | slice) -> Example | Sequence[Example]:
        if isinstance(place, slice):
            return Stored(self._store, self._numbers[place])
        example: Example = self._store[self._numbers[place]]
        return example

    @property
    def costliest(self) -> int:
        """The cost of the costliest example; 0 if there are none."""
        return max(map(self._store.cost, self._numbers), default=0)


@dataclass(frozen=True, slots=True)
class Member:
    """A client and its examples. ``validation`` and ``test`` are never trained on."""

    client: Client
    train: Sequence[Example]
    validation: Sequence[Example]
    test: Sequence[Example] = ()
    """Test examples of its own."""
    units: Sequence[int] | None = None
    """The unit of each training example (:mod:`rondo.data.units`); None where each is its own."""

    def trained(self) -> Sequence[Example]:
        """The training examples, each made once, with their units where they have some."""
        examples = tuple(self.train)  # a store makes a new object on every access
        return examples if self.units is None else Units(examples, self.units, self.client.num_examples)


class Members(Mapping[str, Member]):
    """Clients, sorted by id, with their examples in a store. Members are made on access: between rounds a client costs
    its id and 4 bytes per example, so a run can have a hundred thousand clients."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._names: list[str] = []
        self._numbers = array("I")
        # Per client, the ends of its training and of its validation examples in ``_numbers``.
        self._trained, self._ends = array("q"), array("q", [0])
        self._ranks = array("I")
        self._tests: Mapping[str, Sequence[Example]] = {}
        self._units: dict[str, array[int]] = {}
        self._rows: dict[str, int] = {}

    def add(
        self,
        name: str,
        train: Iterable[int],
        validation: Iterable[int],
        units: Sequence[int] | None = None,
        rows: int | None = None,
    ) -> None:
        """Add a client, whose id must sort after all others, with the numbers of its examples. ``units``: see
        :class:`Member`. ``rows``: the number to tell of it, if it is not that of its training examples."""
        self._names.append(name)
        if rows is not None:
            self._rows[name] = rows
        if units is not None:
            self._units[name] = array("I", units)
        self._numbers.extend(train)
        self._trained.append(len(self._numbers))
        self._numbers.extend(validation)
        self._ends.append(len(self._numbers))

    def with_ranks(self, ranks: Mapping[str, int]) -> Members:
        """The same clients, each with its own rank."""
        ranked = copy.copy(self)
        ranked._ranks = array("I", (ranks[name] for name in self._names))
        return ranked

    def with_tests(self, tests: Mapping[str, Sequence[Example]]) -> Members:
        """The same clients, with their own test examples by id."""
        tested = copy.copy(self)
        tested._tests = tests
        return tested

    def __getitem__(self, name: str) -> Member:
        place = bisect_left(self._names, name)
        if place == len(self._names) or self._names[place] != name:
            raise KeyError(name)
        start, middle, end = self._ends[place], self._trained[place], self._ends[place + 1]
        train, validation = self._numbers[start:middle], self._numbers[middle:end]
        rows = self._rows.get(name, len(train))
        client = Client(name, rows, self._ranks[place] if self._ranks else None)
        tests, units = self._tests.get(name, ()), self._units.get(name)
        return Member(client, Stored(self._store, train), Stored(self._store, validation), tests, units)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
