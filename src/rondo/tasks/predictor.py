"""A model as a task predicts with it, and the batches of its calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Protocol

from torch import Tensor


class Predictor(Protocol):
    """A trained model, with every tensor in its place. It takes tensors on any device."""

    @property
    def batch_size(self) -> int:
        """Most rows of a call."""

    def output(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """The network's output for ``inputs``, as :meth:`rondo.tasks.task.Task.collate` gives them."""

    def generated(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """Token ids of the text that follows each prompt (ids), in their order. Raises
        :class:`rondo.errors.ConfigError` for a model that generates none, and for prompts that leave no room."""


def batches(costs: Sequence[int], size: int, *, one_cost: bool = False) -> Iterator[list[int]]:
    """Numbers of rows, at most ``size`` at a time, by ascending cost. ``one_cost``: those of a batch have the same."""
    order = sorted(range(len(costs)), key=costs.__getitem__)
    groups = [list(group) for _, group in groupby(order, costs.__getitem__)] if one_cost else [order]
    for group in groups:
        for start in range(0, len(group), size):
            yield group[start : start + size]
