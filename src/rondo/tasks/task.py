"""The contract of a task, and the padding that all text tasks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

Batch: TypeAlias = Mapping[str, Tensor]
Row: TypeAlias = Mapping[str, Any]
Scores: TypeAlias = dict[str, float | None]
"""Metric to value; None where it is not defined on the data at hand (never NaN)."""


@dataclass(frozen=True)
class Example:
    """One tokenised row: input ids, segment ids where the tokenizer gives them, and the target (a class or ids)."""

    ids: tuple[int, ...]
    target: int | tuple[int, ...]
    segments: tuple[int, ...] | None = None

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self.ids)


class Tally(Protocol):
    """Scores in the making, batch by batch."""

    def add(self, logits: Tensor, batch: Batch) -> None: ...

    def scores(self) -> Scores:
        """The metrics so far. Not defined ones are None."""


class Task(Protocol):
    """A task. ``primary`` names the metric to show, ``higher_is_better`` its direction."""

    task_type: Literal["SEQ_CLS", "CAUSAL_LM"]
    primary: str
    higher_is_better: bool

    def encode(self, rows: Sequence[Row]) -> list[Example]:
        """Tokenise rows that passed :func:`rondo.tasks.row_checks.row_check`."""

    def collate(self, examples: Sequence[Example]) -> tuple[Batch, Batch]:
        """Inputs of the network and targets, padded to the longest example."""

    def loss(self, logits: Tensor, targets: Batch) -> tuple[Tensor, Tensor]:
        """The sum of the losses of every row's targets, and their number: both of shape (rows,). A client's loss is
        the sum over its rows divided by the number."""

    def tally(self) -> Tally:
        """An empty tally."""


def pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Rows of ids as one (rows, longest) int64 tensor, filled on the right."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def wide(logits: Tensor) -> Tensor:
    """bfloat16 logits in float32, where a loss belongs; wider ones as they are."""
    return logits.float() if logits.element_size() < 4 else logits
