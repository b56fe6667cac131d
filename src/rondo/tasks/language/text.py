"""The base class of text tasks and the padding they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from rondo.tasks.language.token_store import TokenStore
from rondo.tasks.task import Store, Task


class TextTask(Task):
    """A task on token ids. The cost of an example is its number of tokens."""

    padded: ClassVar[bool] = True
    cohort_cost: ClassVar[int | None] = 1024

    def store(self) -> Store:
        """See :meth:`rondo.tasks.task.Task.store`."""
        return TokenStore()


def pad(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Rows of ids as one int64 tensor (rows, longest), padded on the right with ``value``."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])


def wide(logits: Tensor) -> Tensor:
    """Cast bfloat16 logits to float32, which a loss needs; return wider ones as they are."""
    return logits.float() if logits.element_size() < 4 else logits
