"""A thread's own copy of a module, whose tensors a call replaces.

``torch.func.functional_call`` does the same for any module. It looks for tied tensors and for every tensor's place in
each call, which takes longer than a small network's layers; a copy that lives for many calls looks once.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rondo.models.networks.checks import Dropout, Normalisation
from rondo.params import Params


class ThreadCopy:
    """A copy of ``module`` that shares all tensors with it, and drops by generators of its own."""

    def __init__(self, module: nn.Module) -> None:
        shared: dict[int, Any] = {id(t): t for t in (*module.parameters(), *module.buffers())}
        self.module = copy.deepcopy(module, shared)
        replaced: dict[nn.Module, _Drop] = {}
        for path, layer in list(self.module.named_modules(remove_duplicate=False)):
            if isinstance(layer, Dropout):
                self.module.set_submodule(path, replaced.setdefault(layer, _Drop(layer)))
        self._drops = list(replaced.values())
        self._norms = {p: m for p, m in self.module.named_modules() if isinstance(m, Normalisation)}
        self._places = _places(self.module)

    def prepare(self, moving: Collection[str], generator: torch.Generator | None) -> None:
        """Put the layers that differ in training into that mode, or back.

        ``moving``: paths of the batch normalisations that normalise by the batch.
        ``generator``: None outside training.
        """
        for path, layer in self._norms.items():
            layer.training = generator is not None and path in moving
        for drop in self._drops:
            drop.generator = generator

    @contextlib.contextmanager
    def holding(self, tensors: Params) -> Iterator[nn.Module]:
        """The module with ``tensors`` in place of its own of these names, under all names that they have."""
        places = [(holder, key, t) for name, t in tensors.items() for holder, key in self._places[name]]
        before = [holder[key] for holder, key, _ in places]
        for holder, key, tensor in places:
            holder[key] = tensor
        try:
            yield self.module
        finally:
            for (holder, key, _), tensor in zip(places, before, strict=True):
                holder[key] = tensor


def _places(module: nn.Module) -> dict[str, list[tuple[dict[str, Any], str]]]:
    """By the name of every tensor, all places that hold it: tied tensors have several."""
    held: dict[int, list[tuple[dict[str, Any], str]]] = {}
    names: dict[str, int] = {}
    for path, layer in module.named_modules():
        for holder in (layer._parameters, layer._buffers):
            for key, tensor in holder.items():
                if tensor is not None:
                    held.setdefault(id(tensor), []).append((holder, key))
                    names[f"{path}.{key}" if path else key] = id(tensor)
    return {name: held[number] for name, number in names.items()}


class _Drop(nn.Module):
    """Dropout that draws from a generator of its own, and does nothing without one."""

    def __init__(self, like: Dropout) -> None:
        super().__init__()
        self.keep = 1 - like.p
        self.channels = not isinstance(like, nn.Dropout)
        self.generator: torch.Generator | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.generator is None or self.keep == 1:
            return x
        # nn.Dropout2d and its kin drop whole channels, the second axis.
        shape = (*x.shape[:2], *[1] * (x.dim() - 2)) if self.channels else x.shape
        mask = torch.empty(shape).bernoulli_(self.keep, generator=self.generator)
        return x * (mask / self.keep if self.keep else mask).to(x)
