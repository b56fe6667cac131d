"""One call of a network: its tensors, and which rows of the batch are whose."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rondo.lowrank import LowRank
from rondo.params import Params


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the processor's on ``device``, without waiting for the copy where it is an accelerator."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


@dataclass(frozen=True)
class Rows:
    """Which rows of a batch are whose: ``counts`` of K clients, the rows ordered by client. A count may be zero.

    ``longest``: tokens of each client's longest row, where rows are padded to that of the longest of all.
    """

    counts: tuple[int, ...]
    longest: tuple[int, ...] | None = None
    index: Tensor = field(init=False, repr=False)
    """The client of every row, shape (rows,)."""

    def __post_init__(self) -> None:
        counts = torch.tensor(self.counts)
        object.__setattr__(self, "index", torch.arange(len(counts)).repeat_interleave(counts))

    @property
    def even(self) -> bool:
        """Whether every client has the same number of rows, so that rows can be reshaped to (K, rows a client)."""
        return len(set(self.counts)) == 1

    def to(self, device: torch.device) -> Rows:
        """With ``index`` on ``device``."""
        moved = Rows(self.counts, self.longest)
        object.__setattr__(moved, "index", to_device(self.index, device))
        return moved

    def sum(self, values: Tensor) -> Tensor:
        """Sums over each client's rows, shape (K,), of ``values`` (rows,). What is not finite stays its client's."""
        if self.even:
            return values.reshape(len(self.counts), -1).sum(1)
        return values.new_zeros(len(self.counts)).index_add(0, self.index, values)


class _Token:
    """Lives as long as the graph of the call that it was made for."""


class Call(threading.local):
    """What a network's layers must know of the call that this thread is in, or was in last: its tensors, and, because
    activation checkpointing runs layers again in ``backward``, which calls have a graph whose layers could yet run
    again."""

    def __init__(self) -> None:
        self.params: Params = {}
        self.base: Mapping[str, LowRank] = {}
        self.rows = Rows((1,))
        self.dropout: Sequence[torch.Generator] | None = None
        self.masks: dict[str, list[Tensor]] = {}
        self.inside = False
        self.open: list[weakref.ref[_Token]] = []
        self.again = False

    def begin(
        self, params: Params, base: Mapping[str, LowRank], rows: Rows, dropout: Sequence[torch.Generator] | None
    ) -> None:
        if self.again:  # the backward that ran layers again was the earlier calls' own
            self.open, self.again = [], False
        self.params, self.base, self.rows, self.dropout, self.masks = params, base, rows, dropout, {}
        self.inside = True

    def end(self, output: Tensor | None) -> None:
        """Note the call as open for as long as its graph lives."""
        self.inside = False
        self.open = [ref for ref in self.open if ref() is not None]
        if output is not None and output.grad_fn is not None:
            token = _Token()
            output.grad_fn.metadata["rondo call"] = token  # type: ignore[index]
            self.open.append(weakref.ref(token))

    def layer_runs(self) -> None:
        """Raises RuntimeError where a layer runs again with another call's tensors in place."""
        if not self.inside:
            self.again = True
            if sum(ref() is not None for ref in self.open) > 1:
                raise RuntimeError("activation checkpointing allows one network call before each backward")
