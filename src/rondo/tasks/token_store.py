"""Examples by the hundred thousand: token ids in flat arrays, four bytes each, made into objects when they are used."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from typing import overload

from rondo.tasks.task import Example


class ExampleStore:
    """All examples of a run. Targets are all classes or all sequences; segments are there for all or for none."""

    def __init__(self) -> None:
        self._ids, self._ends = array("i"), array("q", [0])
        self._targets, self._target_ends = array("i"), array("q", [0])
        self._segments = array("b")
        self._single = True

    def add(self, examples: Iterable[Example]) -> range:
        """Store ``examples``; their numbers."""
        first = len(self._ends) - 1
        for example in examples:
            self._ids.extend(example.ids)
            self._ends.append(len(self._ids))
            self._single = isinstance(example.target, int)
            self._targets.extend((example.target,) if isinstance(example.target, int) else example.target)
            self._target_ends.append(len(self._targets))
            self._segments.extend(example.segments or ())
        return range(first, len(self._ends) - 1)

    def __getitem__(self, number: int) -> Example:
        start, end = self._ends[number], self._ends[number + 1]
        target = tuple(self._targets[self._target_ends[number] : self._target_ends[number + 1]])
        segments = tuple(self._segments[start:end]) if self._segments else None
        return Example(tuple(self._ids[start:end]), target[0] if self._single else target, segments)

    def sha256(self) -> str:
        """A digest of all examples in their order."""
        digest = hashlib.sha256()
        for part in (self._ids, self._ends, self._targets, self._target_ends, self._segments):
            digest.update(len(part).to_bytes(8) + part.tobytes())
        return digest.hexdigest()

    def length(self, number: int) -> int:
        """Number of tokens."""
        return self._ends[number + 1] - self._ends[number]


class Stored(Sequence[Example]):
    """Some examples of a store. Each access makes a new object."""

    __slots__ = ("_numbers", "_store")

    def __init__(self, store: ExampleStore, numbers: Iterable[int]) -> None:
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
        return self._store[self._numbers[place]]

    @property
    def longest(self) -> int:
        """Tokens of the longest; 0 where there is none."""
        return max(map(self._store.length, self._numbers), default=0)
