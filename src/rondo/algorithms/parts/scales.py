"""Scales as tensors, for methods whose clients need to know them: ``<module>.s``, (1, 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from torch import Tensor

from rondo.algorithm import Client, Weight
from rondo.params import Params, adapted_modules, cut_rank, fixed, module_of, pick

ClientScale: TypeAlias = Literal["run", "rank"]
"""The scale at which a client of a lower rank trains: the run's, or its own."""

Units: TypeAlias = Literal["scale", "weight"]
"""The units in which a change of a whole weight is trained and sent: the adapter's scale, or the weight itself."""


def check_units(units: str) -> None:
    """Raises ValueError for unknown ``units``."""
    if units not in get_args(Units):
        raise ValueError(f"units is one of {', '.join(get_args(Units))}; got {units!r}")


def module_scales(params: Params, weights: Mapping[str, Weight]) -> dict[str, Tensor]:
    """The adapter's scale of every adapted module of ``params``, in the dtype of its A."""
    return {f"{p}.s": params[f"{p}.A"].new_full((1, 1), weights[p].scale) for p in adapted_modules(params)}


def check_client_scale(client_scale: str) -> None:
    """Raises ValueError for an unknown ``client_scale``."""
    if client_scale not in get_args(ClientScale):
        raise ValueError(f"client_scale is one of {', '.join(get_args(ClientScale))}; got {client_scale!r}")


def sent_to(client: Client, params: Params, client_scale: ClientScale) -> dict[str, Tensor]:
    """The factors of ``params`` cut to the client's rank r_k (no client axis).

    "rank": B is in the client's own scale, r / r_k times the run's, and the ratio stands beside it as ``<module>.s``.
    With alpha / r for the run's scale, the client's own is alpha / r_k. The model is the same.
    """
    cut = cut_rank(params, client.rank)
    if client_scale == "rank" and client.rank is not None:
        for path in adapted_modules(params):
            ratio = params[f"{path}.A"].shape[0] / cut[f"{path}.A"].shape[0]
            cut |= {f"{path}.B": cut[f"{path}.B"] / ratio, f"{path}.s": cut[f"{path}.A"].new_full((1, 1), ratio)}
    return cut


def in_runs_scale(params: Params) -> dict[str, Tensor]:
    """``params`` with B in the run's scale, without the ratios. A client axis may lead."""
    ratios = {f"{module_of(n)}.B": ratio for n, ratio in pick(params, fixed).items()}
    return {n: t * ratios[n] if n in ratios else t for n, t in pick(params, ~fixed).items()}
