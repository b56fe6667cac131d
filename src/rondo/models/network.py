"""The engine's view of a model: which tensors it takes from clients, and its output for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn

from rondo.algorithm import Weight
from rondo.lowrank import LowRank, total
from rondo.models.adapted_layer import Site
from rondo.models.call import Rows
from rondo.params import Params
from rondo.tasks.task import Batch

Base = Mapping[str, tuple[LowRank, ...]]


class Network(ABC):
    """A module that takes some of its tensors from clients. Everything else in it is frozen and shared."""

    module: nn.Module
    """In eval mode, without gradients."""
    initial: Params
    """Every tensor that it takes, at its start value, no client axis. Names tell roles (:mod:`rondo.params`)."""
    sites: Mapping[str, Site] = MappingProxyType({})
    """The adapted layers by module path."""
    _compact: tuple[Base, dict[str, tuple[LowRank, ...]]] | None = None

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def one_at_a_time(self) -> str | None:
        """Why clients cannot share a call, nor calls run in several threads; None where they can."""
        return None

    def weights(self) -> dict[str, Weight]:
        """The frozen matrix of every adapted layer, read lazily."""
        return {}

    def compact(self, base: Base) -> Base:
        """A change of the base on the device, one matrix per module, in its smaller form. Made once for all clients
        that share it."""
        known = self._compact
        if known is None or known[0] is not base:
            sums = {p: total(chunks).compact() for p, chunks in base.items() if chunks}
            known = (base, {p: (LowRank(c.up.to(self.device), c.down.to(self.device)),) for p, c in sums.items()})
            self._compact = known
        return known[1]

    @abstractmethod
    def __call__(
        self,
        params: Params,
        base: Base,
        batch: Batch,
        dropout: Sequence[torch.Generator] | None = None,
        rows: Rows | None = None,
    ) -> Tensor:
        """The output on ``batch``, its rows ordered by client, with tensors as ``view`` returns them.

        ``params`` have a client axis K; ``base`` has none. ``rows``: the rows of each client; None: the same number
        for each. ``dropout``: one generator per client while training. Raises KeyError where ``params`` lacks a
        tensor, ValueError for several clients where :attr:`one_at_a_time` gives a reason.
        """
