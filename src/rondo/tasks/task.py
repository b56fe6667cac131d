"""The contract of a task. Nothing outside this room knows what an example is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import torch
from torch import Tensor

from rondo.config.schema import TaskConfig
from rondo.tasks.example_store import ExampleStore
from rondo.tasks.row_checks import Row, RowProblem

Batch: TypeAlias = Mapping[str, Tensor]
Scores: TypeAlias = dict[str, float | None]
"""Metric to value, the task's ``primary`` metric first; None where it is not defined on these data (never NaN)."""


class Example(Protocol):
    """One row, ready for the network."""

    @property
    def cost(self) -> int:
        """The work of one training step on it, in the task's own unit (tokens, pixels, rows). Cohorts are planned by
        cost, and rows of similar cost are scored together."""


class Store(Protocol):
    """The examples of a run by number."""

    def add(self, examples: Iterable[Any]) -> range:
        """Store ``examples``; their numbers."""

    def __getitem__(self, number: int) -> Any: ...

    def cost(self, number: int) -> int:
        """The cost of an example."""

    def sha256(self) -> str:
        """A digest of all examples in their order."""


class Tally(Protocol):
    """Scores in the making, batch by batch."""

    def add(self, output: Tensor, targets: Batch) -> None: ...

    def scores(self) -> Scores:
        """The metrics so far. Undefined ones are None."""


class Task(ABC):
    """A kind of task, made for one run. A task of one's own is named ``package.module:Class`` in ``task.kind``."""

    primary: ClassVar[str]
    """The metric to show. It comes first in a tally's scores."""
    higher_is_better: ClassVar[bool] = False
    classes: ClassVar[bool] = False
    """Every row has one of several labels, in the column ``task.label``."""
    precision: ClassVar[torch.dtype] = torch.float32
    """The type of numbers that ``train.precision = "exact"`` computes in."""
    padded: ClassVar[bool] = False
    """A batch is padded along its second axis to the costliest row; an example's cost is its length."""
    cohort_cost: ClassVar[int | None] = None
    """The largest cost of a cohort's step from which one thread of a CPU still gains, for frozen weights of four bytes
    a number; None: activations alone limit a cohort."""

    @classmethod
    @abstractmethod
    def of(cls, config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Self:
        """The task of a run. ``tokenizer``: the model's, None where it has none; ``labels``: the label names, in the
        order of the classes."""

    @classmethod
    def problem(cls, config: TaskConfig, row: Row, number: int) -> RowProblem | None:
        """Why row ``number`` cannot be used, or None. The columns that ``config`` names have been checked by then."""
        return None

    @abstractmethod
    def encode(self, rows: Sequence[Row]) -> Sequence[Example]:
        """Examples of rows that passed :meth:`problem`. A row with nothing to learn may be left out."""

    @abstractmethod
    def collate(self, examples: Sequence[Any]) -> tuple[Batch, Batch]:
        """Inputs of the network and targets. Every tensor's first axis is the examples'."""

    @abstractmethod
    def loss(self, output: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        """The sum of the losses of every row's targets, and their number: both of shape (rows,). A client's loss is
        the sum over its rows divided by the number."""

    @abstractmethod
    def tally(self) -> Tally:
        """An empty tally."""

    def store(self) -> Store:
        """An empty store for this task's examples."""
        return ExampleStore(self.collate)
