"""The steps of a local training, of which there are two kinds: plain ones and private ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from rondo.algorithm import Loss, Objective
from rondo.params import Params
from rondo.tasks.task import Example

B = TypeVar("B")


@dataclass(frozen=True)
class Chance:
    """The random numbers of one client in a pass."""

    dropout: torch.Generator
    augmenting: torch.Generator


@dataclass(frozen=True)
class Training:
    """The tensors of one local training of K clients, and the loss that moves them."""

    trained: Params
    """Leaf tensors, (K, ...)."""
    used: Params
    """All tensors, (K, ...), among them the trained ones as they were before the first step."""
    objective: Objective
    optimizer: torch.optim.Optimizer | None
    """The optimizer of ``trained``; None if nothing is trained: a step is then a forward pass."""
    loss: Callable[[Sequence[Sequence[Example]], Sequence[Chance]], Loss]
    """The loss on a batch, one group of examples per client, with each client's random numbers."""


@dataclass(frozen=True)
class Taken:
    """One step of K clients; all of shape (K,)."""

    steps: Tensor
    """1 for a client that took the step, else 0."""
    rows: Tensor
    behind: Tensor
    """The rows behind the gradient."""
    loss: Tensor
    """The loss before the step; NaN where it is not told or no step was taken."""


class Steps(Protocol[B]):
    """The steps of one local training. ``B``: what one of them is taken on."""

    def batches(self, steps: int | None, epochs: int) -> Iterator[B]:
        """Each step's batch: ``steps`` of them, or those of ``epochs`` epochs."""

    def take(self, batch: B) -> Taken:
        """Take one step on ``batch``."""
