"""Exact low-rank algebra: never form what you can factor.

Everything works on factors. The cost is O((in + out) R^2 + R^3) for a total rank R. No d x d matrix and no k x k
eigendecomposition is ever formed, except by :meth:`LowRank.dense`, for exports and tests, and by :class:`GrowingSum`
where the matrix has fewer numbers than its factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce

import torch
from torch import Tensor
from torch.linalg import matrix_norm

_SQUARED = 1e-12
"""The error that :meth:`LowRank.leading` may make by squaring, relative to the largest singular value."""


@dataclass(frozen=True)
class LowRank:
    """The matrix ``up @ down`` in W's units: any scale is inside the factors.

    >>> import torch
    >>> from rondo.lowrank import LowRank
    >>> change = LowRank(torch.randn(700, 4), torch.randn(4, 500))  # B, A
    >>> change.shape, change.rank, (change + change).rank
    ((700, 500), 4, 8)
    >>> near, error = change.truncate(2)
    >>> near.rank
    2
    >>> torch.allclose((change - near).norm(), error)
    True
    """

    up: Tensor
    """(..., out, r)."""
    down: Tensor
    """(..., r, in)."""

    @staticmethod
    def whole(matrix: Tensor) -> LowRank:
        """``matrix`` (..., out, in) beside an identity on its shorter side."""
        out, inp = matrix.shape[-2:]
        identity = torch.eye(min(out, inp), dtype=matrix.dtype, device=matrix.device).expand(*matrix.shape[:-2], -1, -1)
        return LowRank(identity, matrix) if out <= inp else LowRank(matrix, identity)

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
        """Number of columns of ``up``, an upper bound on the matrix's rank."""
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
        """The sum, of rank ``self.rank + other.rank``. The factors are stacked; nothing is computed. Of several:
        ``sum(later, first)``."""
        return LowRank(torch.cat([self.up, other.up], -1), torch.cat([self.down, other.down], -2))

    def __sub__(self, other: LowRank) -> LowRank:
        return self + -other

    def to(self, dtype: torch.dtype) -> LowRank:
        """Both factors in ``dtype``."""
        return LowRank(self.up.to(dtype), self.down.to(dtype))

    def inner(self, other: LowRank) -> Tensor:
        """Frobenius inner product <self, other>, from r x r Gram matrices."""
        return ((self.up.mT @ other.up) * (self.down @ other.down.mT)).sum((-2, -1))

    def norm(self) -> Tensor:
        """Frobenius norm, from the small core of a QR of both factors.

        ``sqrt(inner(self, self))`` would lose half the digits when terms cancel, as in a difference of nearly equal
        matrices.
        """
        norm: Tensor = matrix_norm(self._core()[1])
        return norm

    def _core(self) -> tuple[Tensor, Tensor, Tensor]:
        """Orthonormal Q_up (out, m), Q_down (in, n) and the core (m, n): the matrix is Q_up core Q_down^T."""
        q_up, r_up = torch.linalg.qr(self.up)
        q_down, r_down = torch.linalg.qr(self.down.mT)
        return q_up, r_up @ r_down.mT, q_down

    def svd(self) -> tuple[Tensor, Tensor, Tensor]:
        """Thin SVD ``(U, S, Vh)`` with at most ``rank`` singular values. One factorisation serves every rank."""
        q_up, core, q_down = self._core()
        u, s, vh = torch.linalg.svd(core, full_matrices=False)
        return q_up @ u, s, vh @ q_down.mT

    def leading(self, rank: int) -> tuple[Tensor, Tensor, Tensor]:
        """The ``rank`` largest singular triplets ``(U, S, Vh)`` of one matrix (no leading axes), or all of :meth:`svd`
        if it gives fewer.

        The eigenvectors of an R x R matrix give their subspace, in half the time of :meth:`svd` for a stack of many
        factors. If squaring would cost digits, :meth:`svd` is used instead. Within the subspace the triplets are exact
        to rounding.
        """
        rows = self._leading_rows(rank) if rank < self.rank < min(self.shape) else None
        if rows is None:
            u, s, vh = self.svd()
            return u[:, :rank], s[:rank], vh[:rank]
        u, s, vh = torch.linalg.svd(self.up @ (self.down @ rows), full_matrices=False)
        return u, s, vh @ rows.mT

    def _leading_rows(self, rank: int) -> Tensor | None:
        """An orthonormal basis (in, rank) of the first right singular vectors, or None if squaring would lose too much.

        With up^T up = L L^T (Cholesky), up = Q L^T for some orthonormal Q, so the matrix is Q L^T down. The squares of
        its singular values are the eigenvalues of L^T down down^T L, and an eigenvector w gives the right singular
        vector down^T L w.
        """
        gram_up, gram_down = self.up.mT @ self.up, self.down @ self.down.mT
        root, failed = torch.linalg.cholesky_ex(gram_up)
        if bool(failed):
            return None
        squares, vectors = torch.linalg.eigh(root.mT @ gram_down @ root)
        s = squares.clamp_min(0).sqrt()
        # Rounding moves the squares by this much, and the matrix's part in the subspace by this divided by the gap.
        noise = torch.finfo(s.dtype).eps * matrix_norm(gram_up, torch.inf) * matrix_norm(gram_down, torch.inf)
        if not bool(noise <= _SQUARED * s[-1] * (s[-rank] - s[-rank - 1])):
            return None
        rows: Tensor = torch.linalg.qr(self.down.mT @ (root @ vectors[:, -rank:])).Q
        return rows

    def truncate(self, rank: int) -> tuple[LowRank, Tensor]:
        """The best approximation of the given rank (Eckart-Young) and its Frobenius error.

        ``up`` carries the singular values; the rows of ``down`` are orthonormal. Raises ValueError for a rank below 1.
        """
        if rank < 1:
            raise ValueError(f"rank must be at least 1, got {rank}")
        u, s, vh = self.svd()
        kept = LowRank(u[..., :rank] * s[..., None, :rank], vh[..., :rank, :])
        return kept, torch.linalg.vector_norm(s[..., rank:], dim=-1)


@dataclass(frozen=True)
class GrowingSum:
    """A sum of low-rank matrices, called chunks, that are added one after another; at most 2 out * in numbers.

    The stack of all chunks is kept while it has at most out * in numbers. From then on the sum itself is kept, as a
    dense matrix, and beside it the last chunks that together have at most as many numbers: a holder of an earlier sum
    adds them. Each step of the dense sum is computed in float64 and rounded once, so adding chunks to an earlier sum
    gives the bits of the sum itself.

    >>> import torch
    >>> from rondo.lowrank import GrowingSum, LowRank
    >>> one, two = (LowRank(torch.randn(700, 4), torch.randn(4, 500)) for _ in range(2))
    >>> base_change = GrowingSum.of(one) + two
    >>> [tuple(tensor.shape) for tensor in base_change.since(1)]  # a holder of the first chunk lacks the second
    [(700, 4), (4, 500)]
    """

    count: int
    """Number of chunks in the sum."""
    recent: LowRank
    """The last chunks, stacked, oldest first."""
    ranks: tuple[int, ...]
    """Their ranks."""
    dense: Tensor | None = None
    """The sum (out, in); None while ``recent`` has all chunks."""

    @staticmethod
    def of(chunk: LowRank) -> GrowingSum:
        """The sum of one chunk."""
        return GrowingSum(0, LowRank(chunk.up[:, :0], chunk.down[:0]), ()) + chunk

    def __add__(self, chunk: LowRank) -> GrowingSum:
        """The sum with one more chunk, in the chunks' type."""
        recent, ranks, dense = self.recent + chunk, (*self.ranks, chunk.rank), self.dense
        out, inp = chunk.shape
        largest = out * inp // (out + inp)  # the rank up to which a stack has at most out * in numbers
        if dense is not None:
            dense = _folded(dense, chunk)
        elif recent.rank > largest:
            chunks = map(LowRank, torch.split(recent.up, [*ranks], 1), torch.split(recent.down, [*ranks]))
            dense = reduce(_folded, chunks, chunk.up.new_zeros(out, inp))
        while recent.rank > largest:
            recent, ranks = LowRank(recent.up[:, ranks[0] :], recent.down[ranks[0] :]), ranks[1:]
        return GrowingSum(self.count + 1, recent, ranks, dense)

    def since(self, count: int) -> tuple[Tensor, ...]:
        """The tensors that a holder of the first ``count`` chunks lacks: the factors of the later chunks, stacked, or
        the sum if some of these chunks are no longer kept."""
        held = count - (self.count - len(self.ranks))
        if self.dense is not None and held < 0:
            return (self.dense,)
        first = sum(self.ranks[: max(held, 0)])
        return self.recent.up[:, first:], self.recent.down[first:]

    def growth(self, count: int) -> Growth:
        """:meth:`since`, with what a holder of the first ``count`` chunks must know to add it."""
        lacking = self.since(count)
        ranks = self.ranks[-(self.count - count) :] if len(lacking) == 2 and count < self.count else ()
        return Growth(count, self.count, ranks, lacking)

    def factors(self) -> LowRank:
        """The sum as factors; where it is dense, beside an identity."""
        return self.recent if self.dense is None else LowRank.whole(self.dense)

    def on(self, device: torch.device) -> GrowingSum:
        """The sum on ``device``, without the chunks that a dense sum already has."""
        first = 0 if self.dense is None else self.recent.rank
        recent = LowRank(self.recent.up[:, first:].to(device), self.recent.down[first:].to(device))
        if self.dense is None:
            return replace(self, recent=recent)
        return GrowingSum(self.count, recent, (), self.dense.to(device))


@dataclass(frozen=True)
class Growth:
    """The part of a sum of ``count`` chunks that a holder of the first ``start`` lacks.

    >>> import torch
    >>> from rondo.lowrank import GrowingSum, LowRank
    >>> one, two = (LowRank(torch.randn(700, 4), torch.randn(4, 500)) for _ in range(2))
    >>> server, client = GrowingSum.of(one) + two, GrowingSum.of(one)
    >>> growth = server.growth(client.count)
    >>> growth.start, growth.count
    (1, 2)
    >>> torch.equal(growth.onto(client).recent.up, server.recent.up)
    True
    """

    start: int
    count: int
    ranks: tuple[int, ...]
    """Ranks of the later chunks, oldest first; empty where the sum itself is given."""
    tensors: tuple[Tensor, ...]
    """The later chunks' factors, stacked, or the sum (out, in)."""

    def onto(self, held: GrowingSum | None) -> GrowingSum:
        """The sum, with the bits of its first holder's. Raises ValueError if ``held`` is not the sum of the first
        ``start`` chunks, where it is needed."""
        if len(self.tensors) == 1:
            (dense,) = self.tensors
            return GrowingSum(self.count, LowRank(dense[:, :0], dense[:0]), (), dense)
        up, down = self.tensors
        result = GrowingSum(0, LowRank(up[:, :0], down[:0]), ())
        if self.start > 0:
            if held is None or held.count != self.start:
                raise ValueError(f"chunks from {self.start} on, and {held.count if held else 0} are held")
            result = held
        for chunk in map(LowRank, torch.split(up, [*self.ranks], 1), torch.split(down, [*self.ranks])):
            result += chunk
        return result


def _folded(matrix: Tensor, chunk: LowRank) -> Tensor:
    """``matrix + chunk``, computed in float64 and rounded once."""
    up, down = (factor.double().contiguous() for factor in (chunk.up, chunk.down))
    return torch.addmm(matrix.double(), up, down).to(matrix.dtype)


def mean_product(ups: Sequence[Tensor], downs: Sequence[Tensor], weights: Sequence[float]) -> LowRank:
    """``sum p B A`` as one stack, whose rank is the sum of the ranks, in float64. ``weights`` need not be normalised;
    ranks may differ.

    >>> import torch
    >>> from rondo.lowrank import mean_product
    >>> ups, downs = [torch.ones(7, 2), torch.zeros(7, 2)], [torch.ones(2, 5), torch.ones(2, 5)]
    >>> float(mean_product(ups, downs, weights=[1, 3]).dense()[0, 0])  # (1 * 2 + 3 * 0) / 4
    0.5
    """
    mass = float(sum(weights))
    share = [w / mass for w, b in zip(weights, ups, strict=True) for _ in range(b.shape[-1])]
    up, down = torch.cat(list(ups), -1).double(), torch.cat(list(downs), -2).double()
    return LowRank(up.mul_(up.new_tensor(share)), down)


def top_factors(matrix: LowRank, like: LowRank, *, balanced: bool) -> LowRank:
    """The best approximation of ``matrix`` with the rank of ``like``. ``up`` carries the singular values and the rows
    of ``down`` are orthonormal; with ``balanced`` both carry their square roots.

    For a singular value that is zero to working precision, the column of ``up`` is zero and the row of ``down`` a unit
    vector, or ``like``'s row if the SVD gives none, so training can go on from there. Computed in float64; returned in
    ``like``'s dtype.

    >>> import torch
    >>> from rondo.lowrank import LowRank, top_factors
    >>> mean = LowRank(torch.randn(7, 4), torch.randn(4, 5))
    >>> best = top_factors(mean, like=LowRank(torch.zeros(7, 2), torch.ones(2, 5)), balanced=False)
    >>> best.rank, torch.allclose(best.down @ best.down.mT, torch.eye(2), atol=1e-6)
    (2, True)
    """
    u, s, vh = matrix.to(torch.float64).leading(like.rank)
    # The SVD leaves signs open. Make each row's largest entry positive, so rounding elsewhere never flips a factor.
    sign = torch.where(vh.gather(1, vh.abs().argmax(1, keepdim=True)) < 0, -1.0, 1.0).to(s.dtype)
    u, vh, count = u * sign.mT, vh * sign, s.shape[0]
    nonzero = s > s.amax().clamp_min(torch.finfo(s.dtype).tiny) * max(matrix.shape) * torch.finfo(s.dtype).eps
    s = torch.where(nonzero, s, 0.0)
    up, down = torch.zeros_like(like.up, dtype=torch.float64), like.down.double().clone()
    up[:, :count] = u * (s.sqrt() if balanced else s)
    down[:count] = vh * torch.where(nonzero, s.sqrt(), 1.0)[:, None] if balanced else vh
    return LowRank(up, down).to(like.up.dtype)


def residual(ups: Sequence[Tensor], downs: Sequence[Tensor], weights: Sequence[float]) -> LowRank:
    """``sum p B A - (sum p B)(sum p A)``, the gap between the mean of products and the product of means, in float64.

    It equals ``sum p (B - C)(A - Abar)`` for any C, because the centred A sum to zero. With the last client's B for C
    one term vanishes, so the rank is at most (K - 1) r. ``weights`` need not be normalised; ranks must be equal.
    Source: FedEx-LoRA, the residual that the server adds to the base.

    >>> import torch
    >>> from rondo.lowrank import mean_product, residual
    >>> ups, downs = [torch.randn(7, 2) for _ in range(3)], [torch.randn(2, 5) for _ in range(3)]
    >>> lost = residual(ups, downs, weights=[1, 1, 1])
    >>> lost.rank  # (K - 1) r
    4
    >>> means = (sum(ups) / 3).double() @ (sum(downs) / 3).double()
    >>> torch.allclose(means + lost.dense(), mean_product(ups, downs, [1, 1, 1]).dense(), atol=1e-5)
    True
    """
    up, down = torch.stack(list(ups)).double(), torch.stack(list(downs)).double()
    share = up.new_tensor(weights) / float(sum(weights))
    if len(ups) == 1:
        return LowRank(torch.zeros_like(up[0]), torch.zeros_like(down[0]))
    # In place, on our own copies: memory traffic is half of the time.
    left = up[:-1].sub_(up[-1]).mul_(share[:-1, None, None])
    right = down[:-1].sub_(torch.tensordot(share, down, 1))
    return LowRank(left.movedim(0, 1).flatten(1), right.flatten(0, 1))


def polar(x: Tensor) -> Tensor:
    """The orthogonal factor ``U V^T`` of ``x = U S V^T``: the nearest matrix with orthonormal rows or columns.

    Singular directions whose value is zero to working precision are left out, so a zero matrix gives zero.

    >>> import torch
    >>> from rondo.lowrank import polar
    >>> polar(torch.tensor([[3.0, 0.0], [0.0, 0.5]]))
    tensor([[1., 0.],
            [0., 1.]])
    """
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    keep = s > s[..., :1] * max(x.shape[-2:]) * torch.finfo(x.dtype).eps
    factor: Tensor = (u * keep[..., None, :]) @ vh
    return factor


def row_basis(a: Tensor) -> tuple[Tensor, Tensor]:
    """LQ factorisation ``a = R V``: V has orthonormal rows, R is lower triangular with a non-negative diagonal.

    ``a``: (..., r, k), r <= k. Returns R (..., r, r) and V (..., r, k). The sign rule makes V the same on every
    machine, so a client and a server can each derive it.

    >>> import torch
    >>> from rondo.lowrank import row_basis
    >>> a = torch.randn(2, 5)
    >>> r, v = row_basis(a)
    >>> torch.allclose(r @ v, a, atol=1e-6), torch.allclose(v @ v.mT, torch.eye(2), atol=1e-6)
    (True, True)
    """
    q, r = torch.linalg.qr(a.mT)
    sign = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(a.dtype)
    return (r * sign[..., :, None]).mT, (q * sign[..., None, :]).mT


def beside(full: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """A (n + r, in) and B (out, n + r), n = min(in, out), whose product is ``full`` (out, in) + ``b`` (out, r) ``a``
    (r, in). An identity stands beside ``full``. A client axis may lead; differentiable.

    >>> import torch
    >>> from rondo.lowrank import beside
    >>> full, a, b = torch.ones(7, 5), torch.randn(2, 5), torch.randn(7, 2)
    >>> wide_a, wide_b = beside(full, a, b)
    >>> wide_a.shape, torch.allclose(wide_b @ wide_a, full + b @ a, atol=1e-5)
    (torch.Size([7, 5]), True)
    """
    whole = LowRank.whole(full)
    return torch.cat([whole.down, a], -2), torch.cat([whole.up, b], -1)
