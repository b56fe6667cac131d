"""Layers with several pairs of factors, which a router weighs for each token.

``y + sum_i g_i(x) B_i (A_i x)`` with ``g(x) = softmax(router x)``. A view has the rows of all A_i as A, the columns of
all B_i as B, pair by pair, and ``<module>.router`` (pairs, in). All pairs have one rank.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rondo.params import Params


def weighed(inner: Tensor, x: Tensor, router: Tensor) -> Tensor:
    """``inner`` = A x (..., pairs * r), each pair's part times its weight for the token. Weights are computed in
    float32, or wider.

    ``x``: (..., tokens, in)
    ``router``: (..., pairs, in)
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    weights = torch.softmax((x @ router.to(x.dtype).mT).to(wide), -1).to(inner.dtype)
    return inner * weights.repeat_interleave(inner.shape[-1] // router.shape[-2], -1)


def add_weighed(y: Tensor, x: Tensor, dropped: Tensor, down: Tensor, up: Tensor, router: Tensor) -> Tensor:
    """``y`` (K, tokens, out) with all pairs of K clients. The router sees ``x`` (K, tokens, in), the pairs ``dropped``,
    after dropout."""
    return torch.baddbmm(y, weighed(torch.bmm(dropped, down.mT), x, router), up.mT)


def is_one_pair(seen: Params, path: str) -> bool:
    """Whether the router of a layer decides nothing: there is none, or all its pairs are the same, as a newcomer's may
    be."""
    if f"{path}.router" not in seen:
        return True
    (a, *others), (b, *also) = _pairs(seen, path)
    return all(torch.equal(a, t) for t in others) and all(torch.equal(b, t) for t in also)


def one_pair(seen: Params, path: str) -> tuple[Tensor, Tensor]:
    """A (r, in) and B (out, r), whose product is the layer's change in units of the scale. Raises ValueError if a
    router weighs different pairs."""
    if not is_one_pair(seen, path):
        raise ValueError(f"{path}: a router weighs several pairs of factors, so no matrix is the layer's change")
    if f"{path}.router" not in seen:
        return seen[f"{path}.A"], seen[f"{path}.B"]
    downs, ups = _pairs(seen, path)
    return downs[0], ups[0]


def _pairs(seen: Params, path: str) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """A and B of each pair, without a client axis."""
    count = len(seen[f"{path}.router"])
    return seen[f"{path}.A"].chunk(count, 0), seen[f"{path}.B"].chunk(count, 1)
