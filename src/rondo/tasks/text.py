"""The examples of text tasks, and the padding that they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from rondo.tasks.task import Task
from rondo.tasks.token_store import TokenStore


class TextTask(Task):
    """A task on token ids. The cost of an example is its number of tokens."""

    padded: ClassVar[bool] = True
    cohort_cost: ClassVar[int | None] = 1024

    def store(self) -> TokenStore:
        """See :meth:`rondo.tasks.task.Task.store`."""
        return TokenStore()


def pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Rows of ids as one (rows, longest) int64 tensor, filled on the right."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def wide(logits: Tensor) -> Tensor:
    """bfloat16 logits in float32, where a loss belongs; wider ones as they are."""
    return logits.float() if logits.element_size() < 4 else logits
