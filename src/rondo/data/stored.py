"""A client's examples, held as numbers in a store that all clients share."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import overload

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
