"""The client of every row in a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from rondo.tasks.task import Example

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
    """Whether every client is one row, whose random numbers depend on no row beside it, nor on how far it is padded."""
    device: torch.device = _CPU
    """The device of ``index``."""

    @cached_property
    def index(self) -> Tensor:
        """The client of every row, shape (rows,). Made when it is asked for: most batches never need it."""
        counts = torch.tensor(self.counts)
        return to_device(torch.arange(len(counts)).repeat_interleave(counts), self.device)

    @classmethod
    def of(cls, groups: Sequence[Sequence[Example]], lengths: Callable[[Example], tuple[int, ...]]) -> Rows:
        """The rows of a batch, one group of examples per client. ``lengths``: the tokens of an example in every
        sequence that is padded (:meth:`rondo.tasks.task.Task.lengths`)."""
        counts = tuple(map(len, groups))
        by_client = [[lengths(e) for e in group] for group in groups]
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
        """A copy with ``index`` on ``device``."""
        return replace(self, device=device)

    def sum(self, values: Tensor) -> Tensor:
        """Sum ``values`` (rows,) over each client's rows: shape (K,). NaN and infinity stay within their client."""
        if self.even:
            return values.reshape(len(self.counts), -1).sum(1)
        return values.new_zeros(len(self.counts)).index_add(0, self.index, values)
