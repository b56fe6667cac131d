"""The factors of a result: all that a network adds to its frozen weights, as one A and B per layer."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rondo.lowrank import LowRank
from rondo.models.networks.adapted_layer import Site
from rondo.models.networks.network import Base
from rondo.models.networks.pairs import one_pair
from rondo.params import Params, pick, router


def adapter_factors(sites: Sequence[Site], seen: Params, base: Base) -> dict[str, tuple[Tensor, Tensor, float]]:
    """A, B and the scale of every site such that ``scale * B A`` is all that the network adds to the frozen weight.

    Base changes are concatenated to the factors, so the rank grows by theirs; past min(in, out), where a method's own
    factors may be too (pFedLoRA), the whole change stands beside an identity. Nothing is truncated. With a base change,
    a row of A and its column of B are left out if either is zero.
    """
    factors = {}
    for site in sites:
        a, b = (t.float() for t in one_pair(seen, site.path))
        whole = LowRank(b, a)
        if site.path in base:
            whole = whole + (1 / site.scale) * base[site.path].factors().to(torch.float32)
        if whole.rank > min(whole.shape):
            whole = LowRank.whole(whole.dense())
        a, b = whole.down, whole.up
        if site.path in base:
            used = a.any(1) & b.any(0)
            used[0] |= not used.any()  # an adapter has at least rank 1
            a, b = a[used], b[:, used]
        factors[site.path] = (a, b, site.scale)
    return factors


def truncated(sites: Sequence[Site], seen: Params, base: Base, rank: int) -> tuple[dict[str, Tensor], float]:
    """Cut every site's whole change, base included, to its best approximation of ``rank`` (Eckart-Young). Returns the
    tensors that the network then takes, and the loss: the Frobenius norm of all dropped parts over that of all changes.
    """
    result, lost, whole = pick(seen, ~router), 0.0, 0.0
    for site in sites:
        a, b = (t.double() for t in one_pair(seen, site.path))
        change = LowRank(site.scale * b, a)
        if site.path in base:
            change += base[site.path].factors().to(torch.float64)
        kept, dropped = change.truncate(rank)
        result[f"{site.path}.A"], result[f"{site.path}.B"] = kept.down.float(), (kept.up / site.scale).float()
        lost, whole = lost + float(dropped) ** 2, whole + float(change.norm()) ** 2
    return result, math.sqrt(lost / whole) if whole > 0 else 0.0
