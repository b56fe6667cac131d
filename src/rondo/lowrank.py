"""Exact low-rank algebra: never form what you can factor.

Everything here works on factors. Costs are O((in + out) R^2 + R^3) for a total rank R; no d x d matrix and no
k x k eigendecomposition is formed, except by :meth:`LowRank.dense`, which exports and tests use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor


@dataclass(frozen=True)
class LowRank:
    """The matrix ``up @ down`` in W's units (any scale is inside the factors).

    ``up``: (..., out, r); ``down``: (..., r, in).
    """

    up: Tensor
    down: Tensor

    def __post_init__(self) -> None:
        if self.up.shape[-1] != self.down.shape[-2]:
            raise ValueError(
                f"ranks differ: up is {tuple(self.up.shape)} (out, r), down is {tuple(self.down.shape)} (r, in)"
            )

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in) of the matrix."""
        return self.up.shape[-2], self.down.shape[-1]

    @property
    def rank(self) -> int:
        """Number of columns of ``up``: an upper bound on the matrix's rank."""
        return int(self.up.shape[-1])

    def dense(self) -> Tensor:
        """The (out, in) matrix itself. Only exports and tests should need it."""
        return self.up @ self.down

    def __mul__(self, factor: float) -> LowRank:
        return LowRank(self.up * factor, self.down)

    __rmul__ = __mul__

    def __neg__(self) -> LowRank:
        return LowRank(-self.up, self.down)

    def __add__(self, other: LowRank) -> LowRank:
        """The sum, of rank ``self.rank + other.rank``: factors are stacked, nothing is computed."""
        return LowRank(torch.cat([self.up, other.up], -1), torch.cat([self.down, other.down], -2))

    def __sub__(self, other: LowRank) -> LowRank:
        return self + -other

    def to(self, dtype: torch.dtype) -> LowRank:
        """Both factors in ``dtype``."""
        return LowRank(self.up.to(dtype), self.down.to(dtype))

    def inner(self, other: LowRank) -> Tensor:
        """Frobenius inner product <self, other>, by r x r Gram matrices."""
        return ((self.up.mT @ other.up) * (self.down @ other.down.mT)).sum((-2, -1))

    def norm(self) -> Tensor:
        """Frobenius norm.

        By the small core of a QR of both factors rather than ``sqrt(inner(self, self))``, which loses half the
        digits where terms cancel (a difference of nearly equal matrices).
        """
        norm: Tensor = torch.linalg.matrix_norm(self._core()[1])
        return norm

    def _core(self) -> tuple[Tensor, Tensor, Tensor]:
        """Orthonormal Q_up (out, m), Q_down (in, n) and the core (m, n): the matrix is Q_up core Q_down^T."""
        q_up, r_up = torch.linalg.qr(self.up)
        q_down, r_down = torch.linalg.qr(self.down.mT)
        return q_up, r_up @ r_down.mT, q_down

    def svd(self) -> tuple[Tensor, Tensor, Tensor]:
        """Thin SVD ``(U, S, Vh)`` with at most ``rank`` singular values; one factorisation serves every rank."""
        q_up, core, q_down = self._core()
        u, s, vh = torch.linalg.svd(core, full_matrices=False)
        return q_up @ u, s, vh @ q_down.mT

    def compact(self) -> LowRank:
        """The same matrix in as few numbers: itself, or past rank min(in, out) the dense matrix beside an identity,
        which is smaller from there on."""
        least = min(self.shape)
        if self.rank <= least:
            return self
        one = torch.eye(least, dtype=self.up.dtype, device=self.up.device)
        return LowRank(one, self.dense()) if self.shape[0] <= self.shape[1] else LowRank(self.dense(), one)

    def truncate(self, rank: int) -> tuple[LowRank, Tensor]:
        """The best approximation of the given rank (Eckart-Young) and its Frobenius error.

        The singular values go to ``up``; the rows of ``down`` are orthonormal.
        """
        if rank < 1:
            raise ValueError(f"rank must be at least 1, got {rank}")
        u, s, vh = self.svd()
        kept = LowRank(u[..., :rank] * s[..., None, :rank], vh[..., :rank, :])
        return kept, torch.linalg.vector_norm(s[..., rank:], dim=-1)


def total(parts: Iterable[LowRank]) -> LowRank:
    """The sum of several low-rank matrices, as one stack of factors. Raises ValueError if there is none."""
    chunks = list(parts)
    if not chunks:
        raise ValueError("the sum of no low-rank matrices has no shape")
    return reduce(LowRank.__add__, chunks)


def mean_product(ups: Sequence[Tensor], downs: Sequence[Tensor], weights: Sequence[float]) -> LowRank:
    """``sum p B A`` as one stack, of the sum of the ranks. ``weights`` need not be normalised; ranks may differ."""
    mass = float(sum(weights))
    return LowRank(torch.cat([w / mass * b for w, b in zip(weights, ups, strict=True)], -1), torch.cat(list(downs), -2))


def top_factors(matrix: LowRank, like: LowRank, *, balanced: bool) -> LowRank:
    """The best approximation of ``matrix`` with the rank of ``like``: singular values in ``up`` and orthonormal rows in
    ``down``, or ``balanced`` with their roots in both.

    Where a singular value is zero to working precision, its column of ``up`` is zero and its row of ``down`` a unit
    vector, or ``like``'s where there is none, so that training can go on from there. Computed in float64; in ``like``'s
    type.
    """
    wide = matrix.to(torch.float64)
    u, s, vh = wide.svd()
    count = min(like.rank, s.shape[0])
    u, s, vh = u[:, :count], s[:count], vh[:count]
    there = s > s.amax().clamp_min(torch.finfo(s.dtype).tiny) * max(matrix.shape) * torch.finfo(s.dtype).eps
    s = torch.where(there, s, 0.0)
    up, down = torch.zeros_like(like.up, dtype=torch.float64), like.down.double().clone()
    up[:, :count] = u * (s.sqrt() if balanced else s)
    down[:count] = vh * torch.where(there, s.sqrt(), 1.0)[:, None] if balanced else vh
    return LowRank(up, down).to(like.up.dtype)


def residual(ups: Sequence[Tensor], downs: Sequence[Tensor], weights: Sequence[float]) -> LowRank:
    """``sum p B A - (sum p B)(sum p A)``, the gap between the mean of products and the product of means.

    It equals ``sum p (B - Bbar)(A - Abar)``, of rank at most (K - 1) r because the centred factors sum to zero.
    ``weights`` need not be normalised. Source: FedEx-LoRA, the residual that the server adds to the base.
    """
    mass = float(sum(weights))
    p = [w / mass for w in weights]
    mean_up = sum((q * b for q, b in zip(p, ups, strict=True)), torch.zeros_like(ups[0]))
    mean_down = sum((q * a for q, a in zip(p, downs, strict=True)), torch.zeros_like(downs[0]))
    if len(ups) == 1:
        return LowRank(torch.zeros_like(ups[0]), torch.zeros_like(downs[0]))
    # sum_k p_k (A_k - Abar) = 0, so the last client's centred A is a combination of the others':
    # p_K (B_K - Bbar)(A_K - Abar) = -(B_K - Bbar) sum_{k<K} p_k (A_k - Abar).
    last = ups[-1] - mean_up
    up = torch.cat([q * (b - mean_up - last) for q, b in zip(p[:-1], ups[:-1], strict=True)], -1)
    down = torch.cat([a - mean_down for a in downs[:-1]], -2)
    return LowRank(up, down)


def polar(x: Tensor) -> Tensor:
    """The orthogonal factor ``U V^T`` of ``x = U S V^T`` (the nearest matrix with orthonormal rows or columns).

    Singular directions whose value is zero to working precision are left out, so a zero matrix gives zero.
    """
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    keep = s > s.amax(-1, keepdim=True) * max(x.shape[-2:]) * torch.finfo(x.dtype).eps
    factor: Tensor = (u * keep.to(x.dtype)[..., None, :]) @ vh
    return factor


def row_basis(a: Tensor) -> tuple[Tensor, Tensor]:
    """LQ factorisation ``a = R V`` with V's rows orthonormal and R lower triangular, diagonal non-negative.

    ``a``: (..., r, k), r <= k; returns R (..., r, r) and V (..., r, k). The sign rule makes V the same on every
    machine, which a client and a server that both derive it need.
    """
    q, r = torch.linalg.qr(a.mT)
    sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(a.dtype)
    return (r * sign[..., :, None]).mT, (q * sign[..., None, :]).mT


def gram_sketch(anchor: Tensor, a: Tensor) -> Tensor:
    """``(V a^T) a``: what a FLoRG client uploads, (r, k), given the anchor A_t = R V that everyone holds.

    It is linear in the Gram matrix ``a^T a``, so the mean of the sketches is the sketch of the mean Gram matrix.
    Computed in float64, returned in ``a``'s dtype.
    """
    _, v = row_basis(anchor.double())
    wide = a.double()
    return ((v @ wide.mT) @ wide).to(a.dtype)


def gram_align(anchor: Tensor, sketch: Tensor) -> Tensor:
    """FLoRG's server step (its eqs. 6, 7 and 11) in r x r algebra; returns A_{t+1} (r, k) in ``anchor``'s dtype.

    With A_t = R V (LQ), S the mean sketch ``V Q`` and G = S V^T = V Q V^T, take C with C C^T = G; then
    ``A_{t+1} = polar(R C) C^-1 S``, which equals the paper's eigendecomposition of Q followed by its Procrustes
    alignment. Where G is not positive definite, C and its inverse come from G's positive eigenvalues (a pseudo-
    inverse), so directions that the mean Gram matrix lacks become zero.
    """
    r, v = row_basis(anchor.double())
    s = sketch.double()
    g = s @ v.mT
    g = (g + g.mT) / 2
    c, failed = torch.linalg.cholesky_ex(g)
    well_conditioned = bool((failed == 0).all()) and bool(
        (c.diagonal(dim1=-2, dim2=-1).amin(-1) ** 2 > 1e-12 * c.diagonal(dim1=-2, dim2=-1).amax(-1) ** 2).all()
    )
    if well_conditioned:
        aligned = polar(r @ c) @ torch.linalg.solve_triangular(c, s, upper=False)
    else:
        values, vectors = torch.linalg.eigh(g)
        keep = values > values.amax(-1, keepdim=True).clamp_min(0) * 1e-12
        root = torch.where(keep, values, torch.zeros_like(values)).sqrt()
        inverse = torch.where(keep, 1 / root.clamp_min(torch.finfo(torch.float64).tiny), torch.zeros_like(root))
        aligned = polar(r @ (vectors * root[..., None, :])) @ ((vectors * inverse[..., None, :]).mT @ s)
    result: Tensor = aligned.to(anchor.dtype)
    return result


def gram_top(stack: Tensor, rank: int) -> Tensor:
    """The top ``rank`` rows of ``Lambda^(1/2) P``, where ``stack^T stack = P^T Lambda P``: (rank, k).

    ``stack``: (R, k), rows ``sqrt(p_n) A_n`` of all clients. By QR and a small SVD of the stack, never of the k x k
    Gram matrix. Each row's entry of largest magnitude is made positive (the decomposition leaves signs open).
    """
    wide = stack.double()
    if wide.shape[0] < wide.shape[1]:
        q, r = torch.linalg.qr(wide.mT)
        _, s, vh = torch.linalg.svd(r.mT, full_matrices=False)
        rows = (s[:, None] * vh) @ q.mT
    else:
        _, s, vh = torch.linalg.svd(torch.linalg.qr(wide).R, full_matrices=False)
        rows = s[:, None] * vh
    rows = torch.nn.functional.pad(rows[:rank], (0, 0, 0, max(0, rank - rows.shape[0])))
    largest = rows.gather(1, rows.abs().argmax(1, keepdim=True))
    signed: Tensor = rows * torch.where(largest < 0, -1.0, 1.0).to(rows.dtype)
    result: Tensor = signed.to(stack.dtype)
    return result
