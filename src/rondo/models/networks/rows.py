"""The client of every row in a batch, and rows laid end to end in one long row without padding.

Padding costs as much as tokens do in every layer. A step's rows have the lengths of the data, and those of a cohort
differ most: half to two thirds of what a step computes may be padding. Laid end to end, a step has the same rows, each
with positions and an attention of its own: only the places of their tokens within a call differ, and the result is
padded again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rondo.tasks.task import Batch, Example, Task

_CPU = torch.device("cpu")


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to ``device``. A copy to an accelerator is not waited for."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


@dataclass(frozen=True)
class Rows:
    """The client of every row in a batch. Rows are ordered by client."""

    counts: tuple[int, ...]
    """Rows per client, for K clients. A count may be zero."""
    longest: tuple[int, ...] | None = None
    """Tokens in each client's longest sequence, if sequences are padded to the longest of all clients."""
    padded: bool = True
    """Whether any row may be padded."""
    lengths: tuple[int, ...] | None = None
    """Tokens of each row, if they are known and a row is one sequence."""
    apart: bool = False
    """Whether every client is one example, whose random numbers depend on no other one, nor on padding."""
    device: torch.device = _CPU
    """The device of ``index``."""

    @cached_property
    def index(self) -> Tensor:
        """The client of every row, shape (rows,). Made when it is asked for: most batches never need it."""
        counts = torch.tensor(self.counts)
        return to_device(torch.arange(len(counts)).repeat_interleave(counts), self.device)

    @classmethod
    def of(cls, groups: Sequence[Sequence[Example]], task: Task) -> Rows:
        """The rows of a batch, one group of examples of ``task`` per client."""
        by_client = [[task.lengths(part) for e in group for part in task.sequences(e)] for group in groups]
        counts = tuple(map(len, by_client))
        by_row = [row for client in by_client for row in client]
        if () in by_row:
            return cls(counts)
        longest = tuple(max((n for row in client for n in row), default=0) for client in by_client)
        single = tuple(row[0] for row in by_row) if all(len(row) == 1 for row in by_row) else None
        return cls(counts, longest, len(set(by_row)) > 1, single)

    @property
    def even(self) -> bool:
        """Whether every client has the same number of rows, so that rows can be reshaped to (K, rows per client)."""
        return len(set(self.counts)) == 1

    def to(self, device: torch.device) -> Rows:
        return replace(self, device=device)

    def sum(self, values: Tensor) -> Tensor:
        """Sum ``values`` (rows,) over each client's rows: shape (K,). NaN and infinity stay within their client."""
        if self.even:
            return values.reshape(len(self.counts), -1).sum(1)
        return values.new_zeros(len(self.counts)).index_add(0, self.index, values)


@dataclass(frozen=True)
class Packing:
    """The layout of a batch whose rows are padded on the right."""

    lengths: tuple[int, ...]
    """Tokens of each row."""
    clients: tuple[int, ...]
    """Tokens of each client."""
    places: Tensor = field(repr=False)
    """Place of each token in the padded batch, counted over all rows: shape (tokens,)."""
    drawn: Tensor = field(repr=False)
    """The same on the CPU, where masks of dropout are drawn."""
    positions: Tensor = field(repr=False)
    """Position of each token in its row, shape (1, tokens)."""

    @classmethod
    def of(cls, rows: Rows, device: torch.device) -> Packing:
        """The layout of ``rows``, whose lengths are known."""
        assert rows.lengths is not None
        lengths = torch.tensor(rows.lengths)
        positions = torch.cat([torch.arange(n) for n in rows.lengths])
        places = (torch.arange(len(lengths)) * max(rows.lengths)).repeat_interleave(lengths) + positions
        tokens = tuple(int(part.sum()) for part in torch.split(lengths, list(rows.counts)))
        return cls(rows.lengths, tokens, to_device(places, device), places, to_device(positions[None], device))

    @property
    def longest(self) -> int:
        return max(self.lengths)

    def inputs(self, batch: Batch) -> Batch:
        """``batch`` of ``input_ids`` and ``attention_mask`` (rows, longest) as one row."""
        ids = self.laid(batch["input_ids"])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": self.positions}

    def laid(self, x: Tensor) -> Tensor:
        """``x`` (rows, longest, ...) as one row (1, tokens, ...)."""
        result: Tensor = _Taken.apply(x.flatten(0, 1), self.places)  # type: ignore[no-untyped-call]
        return result[None]

    def padded(self, x: Tensor) -> Tensor:
        """``x`` (1, tokens, ...) as (rows, longest, ...), with zeros for padding."""
        size = len(self.lengths) * self.longest
        result: Tensor = _Put.apply(x[0], self.places, size)  # type: ignore[no-untyped-call]
        return result.reshape(len(self.lengths), self.longest, *x.shape[2:])


class _Taken(torch.autograd.Function):
    """Different rows of a matrix. Torch's own backward pass adds them up one by one, in case some are the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.size = len(x)
        return x.index_select(0, places)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return grad.new_zeros(ctx.size, *grad.shape[1:]).index_copy_(0, places, grad), None


class _Put(torch.autograd.Function):
    """The reverse: rows put into a larger matrix of zeros."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(places)
        return x.new_zeros(size, *x.shape[1:]).index_copy_(0, places, x)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return grad.index_select(0, places), None, None
