"""A store of rows of numbers: two tensors for all examples of a run, so that a batch is one lookup."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from rondo.errors import ConfigError


class Point(NamedTuple):
    """A row of a store. Its cost is its number of values."""

    store: NumberStore
    number: int

    @property
    def cost(self) -> int:
        return self.store.width


class NumberStore:
    """All examples, numbered. ``x`` (rows, inputs) and ``y`` (rows, outputs) hold them in float64; ``width`` is the
    number of values in a row."""

    def __init__(self, x: Tensor | None = None, y: Tensor | None = None) -> None:
        self._x, self._y = ([] if t is None else [t] for t in (x, y))
        self._count = 0 if x is None else len(x)
        self.width = 0 if x is None or y is None else x.shape[1] + y.shape[1]

    @property
    def x(self) -> Tensor:
        return _joined(self._x)

    @property
    def y(self) -> Tensor:
        return _joined(self._y)

    def points(self) -> list[Point]:
        """All examples."""
        return [Point(self, number) for number in range(self._count)]

    def add(self, examples: Iterable[Point]) -> range:
        """See :class:`rondo.tasks.task.Store`. Raises :class:`ConfigError` where rows differ in size."""
        points, first = list(examples), self._count
        if points:
            x, y = gathered(points)
            for column, new, old in (("x", x, self._x), ("y", y, self._y)):
                if self._count and old[0].shape[1] != new.shape[1]:
                    message = f"rows have {old[0].shape[1]} and {new.shape[1]} numbers in column {column!r}: mend them"
                    raise ConfigError.at("data", message)
            self._x, self._y = ([*old, new] if self._count else [new] for old, new in ((self._x, x), (self._y, y)))
            self.width = x.shape[1] + y.shape[1]
            self._count += len(points)
        return range(first, self._count)

    def __getitem__(self, number: int) -> Point:
        return Point(self, number)

    def cost(self, number: int) -> int:
        """See :class:`rondo.tasks.task.Store`."""
        return self.width

    def account(self) -> dict[str, int]:
        """See :class:`rondo.tasks.task.Store`."""
        return {}

    def sha256(self) -> str:
        """See :class:`rondo.tasks.task.Store`."""
        digest = hashlib.sha256()
        for tensor in (self.x, self.y):
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()


def gathered(points: list[Point]) -> tuple[Tensor, Tensor]:
    """``x`` and ``y`` of some points, in their order."""
    store = points[0].store
    if any(p.store is not store for p in points):
        return torch.stack([p.store.x[p.number] for p in points]), torch.stack([p.store.y[p.number] for p in points])
    numbers = torch.tensor([p.number for p in points])
    return store.x[numbers], store.y[numbers]


def _joined(parts: list[Tensor]) -> Tensor:
    """The rows of all parts, which become one part."""
    if len(parts) != 1:
        parts[:] = [torch.cat(parts)] if parts else [torch.empty(0, 0, dtype=torch.float64)]
    return parts[0]
