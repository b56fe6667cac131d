"""Scales as tensors, for methods whose clients need to know them: ``<module>.s``, (1, 1), sent at first contact."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from rondo.algorithm import Weight
from rondo.params import Params, adapted_modules


def module_scales(params: Params, weights: Mapping[str, Weight]) -> dict[str, Tensor]:
    """The adapter's scale of every adapted module of ``params``, in the dtype of its A."""
    return {f"{p}.s": params[f"{p}.A"].new_full((1, 1), weights[p].scale) for p in adapted_modules(params)}
