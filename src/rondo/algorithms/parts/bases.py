"""Fixed bases L (out, r) and R (r, in) of a layer's change L C R, of which C is trained."""

from __future__ import annotations

import torch
from torch import Tensor

from rondo.lowrank import LowRank, row_basis
from rondo.params import Params, Role, normal, role


def decomposed(b: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L, C and R of the product of an adapter's ``b`` (out, r) and ``a`` (r, in), in float64: its singular value
    decomposition, the largest entry of each row of R positive."""
    u, s, vh = LowRank(b.double(), a.double()).leading(len(a))
    signs = torch.where(vh.gather(1, vh.abs().argmax(1, keepdim=True)) < 0, -1.0, 1.0).to(vh.dtype)
    return u * signs.mT, s.diag(), vh * signs


def drawn(shape: tuple[int, int], rank: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """L and R at random, in float64, for a matrix of ``shape`` (out, in). Columns of L and rows of R are orthonormal, or
    each block of as many as their length, where there are more."""
    left, right = (
        torch.cat([row_basis(block)[1] for block in normal(rank, width, generator).split(width)]) for width in shape
    )
    return left.mT.contiguous(), right


def without_cores(params: Params) -> dict[str, Tensor]:
    """``params`` without C, bases and a method's own numbers."""
    unseen = (Role.CORE, Role.FIXED, Role.AUXILIARY)
    return {n: t for n, t in params.items() if role(n) not in unseen}
