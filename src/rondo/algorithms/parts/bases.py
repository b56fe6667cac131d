"""Fixed bases L (out, r) and R (r, in) of a layer's change L C R, of which C is trained."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from rondo.lowrank import LowRank, row_basis
from rondo.params import Params, Role, normal, role


def bases(b: Tensor, a: Tensor, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
    """L, C and R in float64 for an adapter's ``b`` (out, r) and ``a`` (r, in): the singular value decomposition of
    their product, the largest entry of each row of R positive; if it is zero, orthonormal L and R at random, and C = 0.
    """
    if not bool(b.any()):
        left, right = (row_basis(normal(len(a), width, generator))[1] for width in (len(b), a.shape[1]))
        return left.mT.contiguous(), left.new_zeros(len(a), len(a)), right
    u, s, vh = LowRank(b.double(), a.double()).leading(len(a))
    signs = torch.where(vh.gather(1, vh.abs().argmax(1, keepdim=True)) < 0, -1.0, 1.0).to(vh.dtype)
    return u * signs.mT, s.diag(), vh * signs


def without_cores(params: Params) -> dict[str, Tensor]:
    """``params`` without C, bases and a method's own numbers."""
    unseen = (Role.CORE, Role.FIXED, Role.AUXILIARY)
    return {n: t for n, t in params.items() if role(n) not in unseen}
