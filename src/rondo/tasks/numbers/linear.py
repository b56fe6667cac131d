"""Linear regression in float64: rows of numbers ``x`` and ``y``, scored by the squared error."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor

from rondo.config.inputs import TaskConfig
from rondo.errors import ConfigError
from rondo.lowrank import GrowingSum
from rondo.params import Params
from rondo.tasks.numbers.linear_problem import LinearProblem
from rondo.tasks.row_checks import Row, RowProblem
from rondo.tasks.task import Batch, Scores, Store, Tally, Task


class Point(NamedTuple):
    """A row of a store. Its cost is its number of values."""

    store: NumberStore
    number: int

    @property
    def cost(self) -> int:
        return self.store.width


class NumberStore(Store):
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
        return [Point(self, number) for number in range(self._count)]

    def add(self, examples: Iterable[Point]) -> range:
        """Raises :class:`ConfigError` where rows differ in size."""
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

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for tensor in (self.x, self.y):
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.contiguous().numpy().data)
        return digest.hexdigest()


def gathered(points: list[Point]) -> tuple[Tensor, Tensor]:
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


DOWN, UP = "linear.A", "linear.B"
"""The factors of the built-in network y = B A x."""
BODY, HEAD = "representation.weight", "head:regressor.weight"
"""The tensors of the built-in network y = w B^T x: B^T and w."""


class LinearRegression(Task):
    """Least squares. A row has lists of numbers in its columns ``x`` and ``y``.

    ``problem``: the problem that the rows are drawn from, if its truth is known; measures compare the model with it. A
    row's loss is its squared error, summed over outputs, and half of it for a problem of heads, as the papers write it.
    """

    primary = "loss"
    precision: ClassVar[torch.dtype] = torch.float64
    least_squares: ClassVar[str | None] = "y"

    def __init__(self, problem: LinearProblem | None = None) -> None:
        self.problem_drawn = problem
        self.factor = 0.5 if problem is not None and problem.config.kind == "heads" else 1.0

    @classmethod
    def of(cls, config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Self:
        """The truth is not known."""
        return cls()

    @classmethod
    def problem(cls, config: TaskConfig, row: Row, number: int) -> RowProblem | None:
        for column in ("x", "y"):
            values = row.get(column)
            if not isinstance(values, list | tuple) or not values:
                return RowProblem(number, column, f"expected a list of numbers, got {values!r:.60}")
            bad = next((v for v in values if not _is_finite(v)), None)
            if bad is not None:
                return RowProblem(number, column, f"not a finite number: {bad!r:.60}")
        return None

    def encode(self, rows: Sequence[Row]) -> list[Point]:
        """Raises :class:`ConfigError` where rows differ in size."""
        if not rows:
            return []
        for column in ("x", "y"):
            sizes = sorted({len(row[column]) for row in rows})
            if len(sizes) > 1:
                message = f"rows have {sizes[0]} and {sizes[1]} numbers in column {column!r}: mend them"
                raise ConfigError.at("data", message)
        x, y = (torch.tensor([row[column] for row in rows], dtype=self.precision) for column in "xy")
        return NumberStore(x, y).points()

    def collate(self, examples: Sequence[Point]) -> tuple[Batch, Batch]:
        x, y = gathered(list(examples))
        return {"x": x}, {"y": y}

    def loss(self, output: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        sums = self.factor * (output - targets["y"]).square().sum(-1)
        return sums, torch.ones_like(sums)

    def tally(self) -> _Tally:
        return _Tally(self)

    def store(self) -> NumberStore:
        return NumberStore()

    def measures(
        self, model: Callable[[], tuple[Params, Mapping[str, GrowingSum]]], before: Mapping[str, float]
    ) -> dict[str, float]:
        """Distances of the built-in network from the problem's truth; empty where there is no truth to compare with.

        - ``angle_distance`` (factors of rank 1) or ``principal_angle``: the sine of the largest angle between the rows
          of A, or of the representation, and the true ones: |(I - a a^T) a*| (RoLoRA, definition 4.2; FedRep,
          definition 1). Left out where a method changes the base.
        - ``factor``: this distance over its value before the round; 0 where it was 0. In RoLoRA, rounds of B leave it
          at 1, and an iteration of the paper is a round of B and one of A.
        - ``global_loss``: the mean over clients of the loss on all of their rows. For heads it is with the best head of
          each client for this representation, whoever keeps the heads.
        - ``newcomer_error`` (heads): the squared error of a new client that fits its head to 2k rows (FedRep, Figure
          4); the median over a hundred.
        """
        problem = self.problem_drawn
        if problem is None:
            return {}
        seen, base = model()
        if not (DOWN in seen or BODY in seen):
            return {}
        down = seen[DOWN if DOWN in seen else BODY]
        slopes = (seen[UP] @ down).mT if DOWN in seen else problem.with_best_heads(down)
        measures = {}
        if base:  # A is then no more than the latest part of the model
            slopes = slopes + sum(change.factors().dense().mT for change in base.values())
        else:
            name = "angle_distance" if DOWN in seen and problem.config.rank == 1 else "principal_angle"
            measures[name] = largest_sine(down, problem.down)
            if name in before:
                measures["factor"] = measures[name] / before[name] if before[name] > 0 else 0.0
        measures["global_loss"] = self.factor * float(problem.losses(slopes).mean())
        if problem.config.kind == "heads":
            measures["newcomer_error"] = problem.newcomer_error(down)
        return measures


def largest_sine(rows: Tensor, others: Tensor) -> float:
    """The sine of the largest principal angle between the spans of the rows of two (k, d) matrices."""
    ours, theirs = (torch.linalg.qr(m.double().mT).Q for m in (rows, others))
    return float(torch.linalg.matrix_norm(theirs - ours @ (ours.mT @ theirs), 2))


class _Tally(Tally):
    def __init__(self, task: LinearRegression) -> None:
        self.task, self.sum, self.count = task, 0.0, 0

    def add(self, output: Tensor, targets: Batch) -> None:
        self.sum += float(self.task.loss(output, targets)[0].sum())
        self.count += len(output)

    def scores(self) -> Scores:
        return {"loss": self.sum / self.count if self.count else None, "examples": self.count}


def _is_finite(value: Any) -> bool:
    try:
        return type(value) in (int, float) and math.isfinite(value)
    except OverflowError:  # a whole number beyond the range of float64
        return False
