"""The low-rank algebra against dense oracles."""

from __future__ import annotations

import functools
import itertools
import math
import operator
import re
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rondo.algorithm import Client, Upload, weighted_mean
from rondo.algorithms.parts.gram import gram_align, gram_sketch, gram_top
from rondo.lowrank import GrowingSum, LowRank, mean_product, polar, residual, row_basis, top_factors
from rondo.params import Packed, Params

few = settings(max_examples=60)
SIDE = st.integers(1, 9)
RANK = st.integers(1, 4)
SEED = st.integers(0, 2**31)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def draw(seed: int, out: int, inp: int, rank: int) -> LowRank:
    return LowRank(normal(seed, out, rank), normal(seed + 1, rank, inp))


def orthonormal_rows(seed: int, rows: int, columns: int) -> Tensor:
    return torch.linalg.qr(normal(seed, columns, rows))[0].mT


def near(actual: Tensor, expected: Tensor | float, atol: float = 1e-10) -> None:
    expected = torch.as_tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual, expected.expand_as(actual), rtol=0, atol=atol)


# --- LowRank ------------------------------------------------------------------------------------------------------


@few
@given(SEED, SIDE, SIDE, RANK, RANK, st.floats(-3, 3))
def test_arithmetic_equals_that_of_dense_matrices(seed: int, out: int, inp: int, r: int, q: int, factor: float) -> None:
    x, y = draw(seed, out, inp, r), draw(seed + 7, out, inp, q)
    near((x + y).dense(), x.dense() + y.dense())
    near((x - y).dense(), x.dense() - y.dense())
    near((-x).dense(), -x.dense())
    near((factor * x).dense(), factor * x.dense())
    near((x * factor).dense(), factor * x.dense())
    near(sum([y, x], x).dense(), 2 * x.dense() + y.dense())
    assert (x + y).rank == r + q
    assert (x + y).shape == (out, inp) == tuple(x.dense().shape)


def test_matrices_of_several_clients_are_added_and_whole() -> None:
    """A client axis stays where it is."""
    x, y = (LowRank(normal(seed, 3, 5, 2), normal(seed + 1, 3, 2, 4)) for seed in (0, 10))
    near((x + y).dense(), x.dense() + y.dense())
    for matrix in (x.dense(), x.dense().mT):
        whole = LowRank.whole(matrix)
        assert whole.dense().equal(matrix)
        assert (len(whole.up), len(whole.down), whole.rank) == (3, 3, 4)


@few
@given(SEED, SIDE, SIDE, RANK, RANK)
def test_inner_product_and_norm_equal_dense_ones(seed: int, out: int, inp: int, r: int, q: int) -> None:
    x, y = draw(seed, out, inp, r), draw(seed + 7, out, inp, q)
    near(x.inner(y), (x.dense() * y.dense()).sum())
    near(x.norm(), torch.linalg.matrix_norm(x.dense()))


def test_norm_keeps_its_digits_where_terms_cancel() -> None:
    x = draw(0, 9, 8, 3)
    y = LowRank(x.up + 1e-11 * normal(5, 9, 3), x.down)
    expected = torch.linalg.matrix_norm((y.up - x.up) @ x.down)
    assert abs((y - x).norm() / expected - 1) < 1e-3
    assert (x - x).norm() < 1e-14


@few
@given(SEED, SIDE, SIDE, RANK)
def test_client_axis_gives_each_client_its_own_result(seed: int, out: int, inp: int, r: int) -> None:
    x = LowRank(normal(seed, 3, out, r), normal(seed + 1, 3, r, inp))
    rows = [LowRank(x.up[k], x.down[k]) for k in range(3)]
    near(x.norm(), torch.stack([y.norm() for y in rows]))
    near(x.inner(x), torch.stack([y.inner(y) for y in rows]))
    kept, error = x.truncate(1)
    near(kept.dense(), torch.stack([y.truncate(1)[0].dense() for y in rows]))
    near(error, torch.stack([y.truncate(1)[1] for y in rows]), atol=1e-9)


@few
@given(SEED, SIDE, SIDE, RANK)
def test_svd_is_thin_and_rebuilds_the_matrix(seed: int, out: int, inp: int, r: int) -> None:
    x = draw(seed, out, inp, r)
    u, s, vh = x.svd()
    assert s.shape[0] == min(out, inp, r)
    near((u * s) @ vh, x.dense())
    near(s, torch.linalg.svdvals(x.dense())[: s.shape[0]])
    near(u.mT @ u, torch.eye(s.shape[0]))
    near(vh @ vh.mT, torch.eye(s.shape[0]))


@few
@given(SEED, SIDE, SIDE, st.integers(1, 6), st.integers(1, 7))
def test_truncation_is_eckart_young(seed: int, out: int, inp: int, r: int, rank: int) -> None:
    x = draw(seed, out, inp, r)
    kept, error = x.truncate(rank)
    assert kept.rank == min(rank, out, inp, r)
    near(error, torch.linalg.vector_norm(torch.linalg.svdvals(x.dense())[rank:]))
    near(error, torch.linalg.matrix_norm(x.dense() - kept.dense()))
    near(kept.down @ kept.down.mT, torch.eye(kept.rank))
    for other in range(5):
        rival = draw(seed + 100 + 2 * other, out, inp, rank)
        rival = float(rival.inner(x) / rival.inner(rival)) * rival
        assert torch.linalg.matrix_norm(x.dense() - rival.dense()) >= error - 1e-10
        nudged = LowRank(kept.up + 1e-3 * normal(other, *kept.up.shape), kept.down)
        assert torch.linalg.matrix_norm(x.dense() - nudged.dense()) >= error - 1e-10


def test_truncations_of_one_matrix_are_nested() -> None:
    x = draw(3, 8, 6, 5)
    widest, _ = x.truncate(4)
    for rank in (1, 2, 3):
        kept, _ = x.truncate(rank)
        near(kept.up, widest.up[:, :rank])
        near(kept.down, widest.down[:rank])


def test_zero_matrix_can_be_truncated_and_measured() -> None:
    zero = LowRank(torch.zeros(4, 2, dtype=torch.float64), normal(0, 2, 5))
    kept, error = zero.truncate(1)
    assert float(error) == float(zero.norm()) == 0
    assert not kept.dense().any()


@pytest.mark.parametrize("rank", [0, -1])
def test_rank_below_one_is_an_error(rank: int) -> None:
    with pytest.raises(ValueError, match="rank must be at least 1"):
        draw(0, 3, 3, 2).truncate(rank)


def test_mismatched_factors_are_an_error() -> None:
    with pytest.raises(ValueError, match="ranks differ"):
        LowRank(torch.zeros(3, 2), torch.zeros(3, 4))


def test_to_converts_both_factors() -> None:
    x = draw(0, 3, 4, 2).to(torch.float32)
    assert (x.up.dtype, x.down.dtype) == (torch.float32, torch.float32)


# --- leading triplets ---------------------------------------------------------------------------------------------


def check_leading(x: LowRank, rank: int) -> None:
    """Compare ``x.leading(rank)`` with the SVD of the dense matrix, whose largest singular value is about 1."""
    u, s, vh = x.leading(rank)
    dense_u, dense_s, dense_vh = torch.linalg.svd(x.dense(), full_matrices=False)
    count = min(rank, x.rank, *x.shape)
    assert (u.shape, s.shape, vh.shape) == ((x.shape[0], count), (count,), (count, x.shape[1]))
    near(s, dense_s[:count])
    near(u.mT @ u, torch.eye(count))
    near(vh @ vh.mT, torch.eye(count))
    near(torch.linalg.matrix_norm(x.dense() - (u * s) @ vh), torch.linalg.vector_norm(dense_s[count:]))
    if count == len(dense_s) or dense_s[count - 1] - dense_s[count] > 1e-4:  # the best approximation is well determined
        near((u * s) @ vh, (dense_u[:, :count] * dense_s[:count]) @ dense_vh[:count])


def spread(seed: int, out: int, inp: int, rank: int, condition: float) -> LowRank:
    """Factors whose singular values fall from 1 to 1 / condition, in unrelated directions."""
    sizes = torch.logspace(0, -math.log10(condition), rank, dtype=torch.float64)
    up, down = (orthonormal_rows(seed + n, min(rank, side), side) for n, side in enumerate((out, inp)))
    mix, turn = (orthonormal_rows(seed + 2 + n, rank, rank) for n in range(2))
    up, down = up.mT @ (mix * sizes)[: len(up)], (turn * sizes)[: len(down)].mT @ down
    norm = torch.linalg.matrix_norm(up @ down, 2)
    return LowRank(up / norm, down)


WIDE = st.integers(8, 60)
STACK = st.integers(1, 70)


@few
@given(SEED, WIDE, WIDE, STACK, RANK, st.sampled_from([1.0, 10.0, 1e3, 1e8]))
def test_leading_triplets_equal_those_of_the_dense_matrix(
    seed: int, out: int, inp: int, stack: int, rank: int, condition: float
) -> None:
    check_leading(spread(seed, out, inp, stack, condition), rank)


@few
@given(SEED, WIDE, WIDE, st.integers(1, 6), st.integers(1, 6), st.integers(1, 8), st.booleans())
def test_leading_triplets_of_repeated_factors(
    seed: int, out: int, inp: int, r: int, clients: int, rank: int, jitter: bool
) -> None:
    """Clients agree, exactly or up to rounding, so the stack is deficient for any number of clients."""
    one = draw(seed, out, inp, r)
    one = LowRank(one.up / torch.linalg.matrix_norm(one.dense(), 2), one.down)
    ups = [one.up * (1 + jitter * 1e-13 * normal(seed + k, out, r)) for k in range(clients)]
    check_leading(mean_product(ups, [one.down] * clients, [1.0 + k for k in range(clients)]), rank)


@few
@given(SEED, WIDE, WIDE, st.integers(2, 8), st.floats(0, 1e-3))
def test_leading_triplets_of_near_equal_singular_values(
    seed: int, out: int, inp: int, stack: int, apart: float
) -> None:
    sizes = 1 - apart * torch.arange(stack, dtype=torch.float64) / stack
    x = LowRank(orthonormal_rows(seed, stack, out).mT * sizes, orthonormal_rows(seed + 1, stack, inp))
    for rank in range(1, stack + 2):
        check_leading(x, rank)


@pytest.mark.parametrize("zero", ["up", "down", "a column"])
def test_leading_triplets_of_zero_factors(zero: str) -> None:
    x = draw(0, 30, 20, 6)
    x = LowRank(x.up / torch.linalg.matrix_norm(x.dense(), 2), x.down)
    if zero == "a column":
        x.up[:, 2] = 0
    else:
        getattr(x, zero).zero_()
    check_leading(x, 2)


def test_squares_are_used_only_where_they_lose_nothing() -> None:
    even, steep = spread(0, 60, 50, 40, 10.0), spread(0, 60, 50, 40, 1e8)
    assert even._leading_rows(4) is not None
    assert steep._leading_rows(30) is None
    tie = LowRank(torch.eye(60, dtype=torch.float64)[:, :9], torch.eye(50, dtype=torch.float64)[:9])
    assert tie._leading_rows(4) is None


def with_values(values: Sequence[float], out: int = 30, inp: int = 20) -> LowRank:
    """Orthonormal factors around ``values``, which so are the singular values; in descending order."""
    count = len(values)
    up = orthonormal_rows(0, count, out).mT * torch.tensor(values, dtype=torch.float64)
    return LowRank(up, orthonormal_rows(1, count, inp))


@pytest.mark.parametrize("size", [1.0, 100.0])
@pytest.mark.parametrize(("gap", "used"), [(2.3e-4, True), (2.1e-4, False)])
def test_squares_are_used_from_a_known_gap_on(gap: float, used: bool, size: float) -> None:
    """Rounding of the squares, 2.2e-16 of the largest, over the gap is at most 1e-12: a gap of 2.2e-4."""
    values = [size * s for s in (1.0, 0.9, 0.9, 0.8, 0.8 - gap, 0.3, 0.2, 0.1)]
    rows = with_values(values)._leading_rows(4)
    assert (rows is not None) == used
    if rows is not None:
        assert rows.shape == (20, 4)
        near(rows.mT @ rows, torch.eye(4))


@pytest.mark.parametrize(("count", "rank", "tried"), [(6, 5, True), (6, 6, False), (6, 7, False), (20, 5, False)])
def test_squares_are_tried_only_for_fewer_of_few_factors(
    count: int, rank: int, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer triplets than factors, and fewer factors than the shorter side, which is 20."""
    asked: list[int] = []
    monkeypatch.setattr(LowRank, "_leading_rows", lambda _, rank: asked.append(rank))
    check_leading(with_values([0.9**k for k in range(count)]), rank)
    assert asked == [rank] * tried


# --- the factors of the leading triplets --------------------------------------------------------------------------


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_factors_are_the_best_ones_with_positive_peaks(balanced: bool, dtype: torch.dtype) -> None:
    """Of each row of ``down`` the largest entry is positive, so a matrix and its negative have the same ``down``."""
    matrix, like = with_values([1.0, 0.5, 0.25, 0.125]), draw(0, 30, 20, 3).to(dtype)
    u, s, vh = torch.linalg.svd(matrix.dense(), full_matrices=False)
    best = (u[:, :3] * s[:3]) @ vh[:3]
    for sign in (1, -1):
        factors = top_factors(sign * matrix, like, balanced=balanced)
        assert (factors.up.dtype, factors.down.dtype) == (dtype, dtype)
        exact = factors.to(torch.float64)
        near(exact.dense(), sign * best, 1e-12 if dtype is torch.float64 else 1e-6)
        peaks = exact.down.gather(1, exact.down.abs().argmax(1, keepdim=True))
        assert bool((peaks > 0).all())
        norms = (s[:3].sqrt(), s[:3].sqrt()) if balanced else (s[:3], torch.ones(3))
        for factor, norm in zip((exact.up.norm(dim=0), exact.down.norm(dim=1)), norms, strict=True):
            near(factor, norm, 1e-6)


@pytest.mark.parametrize("balanced", [False, True])
def test_top_factors_of_zero_values_can_learn(balanced: bool) -> None:
    """A zero column of ``up`` is beside a unit row of ``down``, or ``like``'s where no singular vector is left."""
    like = draw(0, 30, 20, 5)
    for values, nonzero in (([1.0, 1e-10, 1e-17], 2), ([1e-200, 1e-217, 0.0], 1), ([0.0] * 3, 0)):
        factors = top_factors(with_values(values), like, balanced=balanced)
        assert factors.up.any(0).tolist() == [True] * nonzero + [False] * (5 - nonzero)
        near(factors.down[nonzero:3].norm(dim=1), 1.0)
        assert factors.down[3:].equal(like.down[3:])


def test_zero_of_top_factors_goes_by_the_longer_side() -> None:
    """Rounding in a product of 3 x 3000 is that of 3000 terms."""
    for value, kept in ((8e-13, True), (5e-13, False)):  # 3000 times 2.2e-16 is 6.7e-13
        factors = top_factors(with_values([1.0, value], 3, 3000), draw(0, 3, 3000, 2), balanced=False)
        assert bool(factors.up[:, 1].any()) == kept


@few
@given(SEED, SIDE, SIDE, st.lists(RANK, min_size=1, max_size=5), st.sampled_from([torch.float32, torch.float64]))
def test_mean_product_is_the_dense_mean_in_float64(
    seed: int, out: int, inp: int, ranks: list[int], dtype: torch.dtype
) -> None:
    parts = [draw(seed + 2 * k, out, inp, r).to(dtype) for k, r in enumerate(ranks)]
    weights = [1.0 + 3 * k for k in range(len(ranks))]
    got = mean_product([x.up for x in parts], [x.down for x in parts], weights)
    assert (got.rank, got.up.dtype, got.down.dtype) == (sum(ranks), torch.float64, torch.float64)
    expected = sum(w * x.to(torch.float64).dense() for w, x in zip(weights, parts, strict=True))
    near(got.dense(), expected / sum(weights))


def test_mean_of_products_needs_a_weight_per_client() -> None:
    one, other = (draw(seed, 5, 4, 2) for seed in (0, 1))
    for weights in ([1.0], [1.0, 2.0, 3.0]):
        with pytest.raises(ValueError, match="zip"):
            mean_product([one.up, other.up], [one.down, other.down], weights)


# --- the residual -------------------------------------------------------------------------------------------------


@few
@given(SEED, SIDE, SIDE, RANK, st.integers(1, 5), st.floats(0.1, 100))
def test_residual_is_the_covariance_of_the_factors(
    seed: int, out: int, inp: int, r: int, clients: int, scale: float
) -> None:
    ups = [normal(seed + 2 * k, out, r) for k in range(clients)]
    downs = [normal(seed + 2 * k + 1, r, inp) for k in range(clients)]
    weights = (scale * (normal(seed, clients).abs() + 0.05)).tolist()
    p = [w / sum(weights) for w in weights]
    up, down = (sum(q * x for q, x in zip(p, xs, strict=True)) for xs in (ups, downs))
    products = sum(q * (b @ a) for q, b, a in zip(p, ups, downs, strict=True))
    covariance = sum(q * ((b - up) @ (a - down)) for q, b, a in zip(p, ups, downs, strict=True))
    got = residual(ups, downs, weights)
    near(got.dense(), products - up @ down)
    near(got.dense(), covariance)
    assert got.rank == max(clients - 1, 1) * r


def test_residual_reaches_its_rank() -> None:
    ups, downs = [normal(k, 30, 3) for k in range(4)], [normal(10 + k, 3, 20) for k in range(4)]
    assert torch.linalg.matrix_rank(residual(ups, downs, [1.0, 2.0, 3.0, 4.0]).dense()) == 9


def test_residual_of_a_common_factor_is_zero() -> None:
    """So is the residual of one client, and that of equal clients."""
    up, down = normal(0, 5, 2), normal(1, 2, 4)
    assert not residual([up], [down], [3.0]).dense().any()
    near(residual([up] * 3, [down] * 3, [1.0, 2.0, 4.0]).dense(), 0.0)
    near(residual([up] * 2, [down, 2 * down], [1.0, 2.0]).dense(), 0.0)
    near(residual([up, 2 * up], [down] * 2, [1.0, 2.0]).dense(), 0.0)


@few
@given(SEED, st.integers(2, 40), st.integers(2, 40), RANK, st.integers(2, 12), st.floats(1e-8, 1))
def test_residual_of_close_clients_keeps_its_digits(
    seed: int, out: int, inp: int, r: int, clients: int, step: float
) -> None:
    """The error is relative to the residual, which a difference of dense products does not achieve. The stack may have
    more columns than sides."""
    up, down = normal(seed, out, r), normal(seed + 1, r, inp)
    left, right = (
        [step * normal(seed + 2 + 2 * k + n, *x.shape) for k in range(clients)] for n, x in enumerate((up, down))
    )
    got = residual([up + x for x in left], [down + x for x in right], [1.0 + k for k in range(clients)])
    p = [(1.0 + k) / (clients * (clients + 1) / 2) for k in range(clients)]
    mean_left, mean_right = (sum(q * x for q, x in zip(p, xs, strict=True)) for xs in (left, right))
    products = sum(q * (x @ y) for q, x, y in zip(p, left, right, strict=True))
    near(got.dense(), products - mean_left @ mean_right, atol=1e-14 + 1e-13 * step)


def test_residual_of_float32_uploads_is_computed_in_float64() -> None:
    ups, downs = [normal(k, 5, 2).float() for k in range(3)], [normal(9 + k, 2, 4).float() for k in range(3)]
    got, weights = residual(ups, downs, [1.0, 2.0, 4.0]), [1.0, 2.0, 4.0]
    assert (got.up.dtype, got.down.dtype) == (torch.float64, torch.float64)
    near(got.dense(), residual([b.double() for b in ups], [a.double() for a in downs], weights).dense(), atol=0)


# --- polar and row_basis ------------------------------------------------------------------------------------------


@few
@given(SEED, SIDE, SIDE)
def test_polar_is_the_nearest_orthonormal_matrix(seed: int, rows: int, columns: int) -> None:
    """Its rows are orthonormal, or its columns where it has more rows than columns."""
    x = normal(seed, rows, columns)
    q = polar(x)
    near(q @ q.mT if rows <= columns else q.mT @ q, torch.eye(min(rows, columns)))
    near((q.mT @ x).trace(), torch.linalg.svdvals(x).sum())
    rival = orthonormal_rows(seed + 1, min(rows, columns), max(rows, columns))
    rival = rival if rows <= columns else rival.mT
    assert torch.linalg.matrix_norm(x - q) <= torch.linalg.matrix_norm(x - rival) + 1e-12


def test_polar_leaves_out_zero_directions() -> None:
    x = normal(0, 4, 2) @ normal(1, 2, 5)
    q = polar(x)
    near(torch.linalg.svdvals(q), torch.tensor([1.0, 1.0, 0.0, 0.0]))
    near((q.mT @ x).trace(), torch.linalg.svdvals(x).sum())
    assert not polar(torch.zeros(3, 4)).any()


@few
@given(SEED, RANK, st.integers(0, 6))
def test_row_basis_is_an_lq_factorisation_with_a_sign_rule(seed: int, r: int, more: int) -> None:
    a = normal(seed, r, r + more)
    lower, v = row_basis(a)
    near(lower @ v, a)
    near(v @ v.mT, torch.eye(r))
    assert torch.equal(lower, lower.tril())
    assert (lower.diagonal() >= 0).all()


def test_row_basis_ignores_the_signs_of_later_rows() -> None:
    a = normal(0, 3, 5)
    flipped = a * torch.tensor([[1.0], [1.0], [-1.0]])
    near(row_basis(flipped)[1][:2], row_basis(a)[1][:2])
    near(row_basis(flipped)[1][2], -row_basis(a)[1][2])


# --- FLoRG's server step ------------------------------------------------------------------------------------------


def paper(anchor: Tensor, clients: list[Tensor], p: list[float], zero: float = 1e-12) -> Tensor:
    """FLoRG's eqs. (4), (6), (7) and (11) as printed: eigendecomposition of the k x k mean, then Procrustes."""
    a = anchor.double().numpy()
    grams = [g.double().numpy().T @ g.double().numpy() for g in clients]
    values, vectors = np.linalg.eigh(sum(w * q for w, q in zip(p, grams, strict=True)))
    keep = values > zero * max(values.max(), 0)
    root = np.sqrt(values[keep])[:, None] * vectors[:, keep].T
    u, s, vt = np.linalg.svd(a @ root.T, full_matrices=False)
    nonzero = s > zero * s.max(initial=0)
    return torch.from_numpy((u * nonzero) @ vt @ root)


def mean_sketch(anchor: Tensor, clients: list[Tensor], p: list[float]) -> Tensor:
    return sum((w * gram_sketch(anchor, g).double() for w, g in zip(p, clients, strict=True)), torch.zeros(()))


def florg_clients(seed: int, r: int, k: int, step: float = 0.3) -> tuple[Tensor, list[Tensor], list[float]]:
    """A well-conditioned anchor, three clients near it and their weights."""
    sizes = torch.linspace(2, 1, r, dtype=torch.float64)
    anchor = orthonormal_rows(seed, r, r) @ (sizes[:, None] * orthonormal_rows(seed + 1, r, k))
    clients = [anchor + step * normal(seed + 2 + n, r, k) / math.sqrt(k) for n in range(3)]
    return anchor, clients, [0.2, 0.3, 0.5]


@few
@given(SEED, RANK, st.integers(0, 10))
def test_alignment_equals_the_papers(seed: int, r: int, more: int) -> None:
    """The paper's eigendecomposition, then Procrustes."""
    anchor, clients, p = florg_clients(seed, r, r + more)
    near(gram_align(anchor, mean_sketch(anchor, clients, p)), paper(anchor, clients, p), atol=1e-10)


@few
@given(SEED, RANK, st.integers(0, 10))
def test_sketch_is_v_times_the_gram_matrix(seed: int, r: int, more: int) -> None:
    anchor, (g, *_), _ = florg_clients(seed, r, r + more)
    q, lower = np.linalg.qr(anchor.numpy().T)
    v = torch.from_numpy((q * np.sign(np.diag(lower))).T)
    near(gram_sketch(anchor, g), v @ (g.mT @ g))


@few
@given(SEED, RANK, st.integers(0, 10))
def test_rotations_of_the_anchor_leave_it_unchanged(seed: int, r: int, more: int) -> None:
    anchor, _, p = florg_clients(seed, r, r + more)
    turned = [orthonormal_rows(seed + n, r, r) @ anchor for n in range(3)]
    near(gram_align(anchor, gram_sketch(anchor, anchor)), anchor)
    near(gram_align(anchor, mean_sketch(anchor, turned, p)), anchor)


@few
@given(SEED, RANK, st.integers(0, 10))
def test_alignment_adds_no_energy(seed: int, r: int, more: int) -> None:
    """One client's Gram matrix, whose rank is low, is kept."""
    anchor, clients, p = florg_clients(seed, r, r + more)
    mean = sum(w * g.mT @ g for w, g in zip(p, clients, strict=True))
    new = gram_align(anchor, mean_sketch(anchor, clients, p))
    assert torch.linalg.eigvalsh(mean - new.mT @ new).min() > -1e-10
    alone = gram_align(anchor, gram_sketch(anchor, clients[0]))
    near(alone.mT @ alone, clients[0].mT @ clients[0], atol=1e-9)


@pytest.mark.parametrize("lost", [0, 2])
def test_stacked_modules_are_aligned_as_single_ones(lost: int) -> None:
    anchors, sketches = [], []
    for seed in range(3):
        anchor, clients, p = florg_clients(seed, 4, 9)
        span = orthonormal_rows(50, 4 - lost, 9) if lost and seed == 1 else torch.eye(9, dtype=torch.float64)
        anchors.append(anchor)
        sketches.append(mean_sketch(anchor, [g @ span.mT @ span for g in clients], p))
    single = [gram_align(a, s) for a, s in zip(anchors, sketches, strict=True)]
    near(gram_align(torch.stack(anchors), torch.stack(sketches)), torch.stack(single))


@pytest.mark.parametrize("lost", [1, 2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_directions_that_the_mean_lacks_are_left_out(seed: int, lost: int) -> None:
    anchor, clients, p = florg_clients(seed, 4, 9)
    span = orthonormal_rows(seed + 50, 4 - lost, 9)  # all clients' rows lie in it: the mean Gram matrix is deficient
    clients = [g @ span.mT @ span for g in clients]
    new = gram_align(anchor, mean_sketch(anchor, clients, p))
    near(new, paper(anchor, clients, p), atol=1e-8)
    assert torch.linalg.matrix_rank(new, rtol=1e-9) == 4 - lost


@pytest.mark.parametrize("seed", range(5))
def test_deficient_anchor_invents_no_directions(seed: int) -> None:
    anchor, clients, p = florg_clients(seed, 4, 9)
    anchor = torch.cat([anchor[:3], anchor[:1] + anchor[1:2]])
    near(gram_align(anchor, mean_sketch(anchor, clients, p)), paper(anchor, clients, p), atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_zero_sketch_gives_zero(dtype: torch.dtype) -> None:
    anchor = florg_clients(0, 3, 6)[0].to(dtype)
    new = gram_align(anchor, torch.zeros(3, 6, dtype=dtype))
    assert new.dtype == dtype
    assert torch.equal(new, torch.zeros(3, 6, dtype=dtype))


def test_indefinite_mean_loses_its_negative_directions() -> None:
    """Noise can make the mean indefinite; the result stays finite."""
    anchor = orthonormal_rows(0, 3, 6)
    _, v = row_basis(anchor)
    indefinite = torch.diag(torch.tensor([2.0, 1.0, -0.5], dtype=torch.float64))
    new = gram_align(anchor, indefinite @ v)
    assert new.isfinite().all()
    near(new.mT @ new, v.mT @ torch.diag(torch.tensor([2.0, 1.0, 0.0], dtype=torch.float64)) @ v)


def test_sketch_keeps_the_client_axis() -> None:
    anchor, clients, _ = florg_clients(0, 3, 6)
    together = gram_sketch(anchor.expand(3, 3, 6), torch.stack(clients))
    near(together, torch.stack([gram_sketch(anchor, g) for g in clients]))


@pytest.mark.parametrize("step", [0.01, 0.1, 1.0])
def test_float32_uploads_at_condition_number_1000(step: float) -> None:
    """Half of the draws are within 1e-6 of the dense float64 result, relative to its norm, and all within 1e-5."""
    errors = []
    for seed in range(0, 250, 10):
        r, k = 4, 32
        sizes, turn = torch.logspace(0, -3, r, dtype=torch.float64)[:, None], orthonormal_rows(seed, r, r)
        anchor = (turn @ (sizes * orthonormal_rows(seed + 1, r, k))).float()
        steps = [turn @ (sizes * normal(seed + 2 + n, r, k)) / math.sqrt(k) for n in range(3)]
        clients, p = [(anchor + step * d).float() for d in steps], [0.2, 0.3, 0.5]
        assert gram_sketch(anchor, clients[0]).dtype == torch.float32
        got, expected = gram_align(anchor.double(), mean_sketch(anchor, clients, p)), paper(anchor, clients, p)
        errors.append(float((got - expected).norm() / expected.norm()))
    assert np.median(errors) < 1e-6
    assert max(errors) < 1e-5


# --- FLoRG without alignment --------------------------------------------------------------------------------------


@few
@given(SEED, st.integers(1, 12), st.integers(1, 9), st.integers(1, 5))
def test_gram_top_is_that_of_the_dense_eigendecomposition(seed: int, rows: int, k: int, rank: int) -> None:
    """For fewer and for more rows than columns. The spectrum is spread, so each eigenvector is well determined."""
    m = min(rows, k)
    sizes = 1.5 ** -torch.arange(m, dtype=torch.float64)
    stack = orthonormal_rows(seed, m, rows).mT @ (sizes[:, None] * orthonormal_rows(seed + 1, m, k))
    values, vectors = np.linalg.eigh((stack.mT @ stack).numpy())
    dense = np.sqrt(values.clip(0))[::-1, None] * vectors.T[::-1]
    dense *= np.sign(dense[np.arange(k), np.abs(dense).argmax(1)])[:, None]
    expected = np.zeros((rank, k))
    expected[: min(rank, m)] = dense[: min(rank, m)]
    got = gram_top(stack, rank)
    assert got.shape == (rank, k)
    near(got, torch.from_numpy(expected), atol=1e-9)


@few
@given(SEED, st.integers(1, 12), st.integers(1, 9))
def test_gram_top_of_full_rank_keeps_the_gram_matrix(seed: int, rows: int, k: int) -> None:
    """The order of the rows does not matter."""
    stack = normal(seed, rows, k)
    top = gram_top(stack, k)
    near(top.mT @ top, stack.mT @ stack, atol=1e-9)
    best = gram_top(stack, 1)
    near((best @ best.mT).squeeze(), torch.linalg.svdvals(stack)[0] ** 2, atol=1e-9)
    other = gram_top(stack.flip(0), k)
    near(other.mT @ other, stack.mT @ stack, atol=1e-9)


def test_gram_top_of_zero_is_zero_and_keeps_the_dtype() -> None:
    assert torch.equal(gram_top(torch.zeros(2, 5), 3), torch.zeros(3, 5))
    assert gram_top(torch.ones(6, 2), 1).dtype == torch.float32


# --- the mean of uploads ------------------------------------------------------------------------------------------


def one_by_one(uploads: list[Upload]) -> dict[str, Tensor]:
    """The weighted mean, tensor by tensor."""
    sums = {n: torch.zeros(t.shape, dtype=torch.float64) for n, t in uploads[0].params.items()}
    for upload in uploads:
        for name, tensor in upload.params.items():
            sums[name] += upload.weight * tensor.double()
    return {n: t / sum(u.weight for u in uploads) for n, t in sums.items()}


@few
@given(
    SEED,
    st.lists(st.lists(st.integers(0, 40), max_size=3), min_size=1, max_size=12),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
    st.integers(1, 4),
)
def test_tensors_added_together_get_their_own_means(
    seed: int, shapes: list[list[int]], dtype: torch.dtype, clients: int
) -> None:
    """Any shapes, scalars and empty ones too; every second matrix is transposed, one tensor has another dtype."""
    uploads = []
    for k in range(clients):
        tensors = [normal(seed + 13 * k + n, *s).to(torch.float64 if n == 2 else dtype) for n, s in enumerate(shapes)]
        tensors = [t.mT.contiguous().mT if n % 2 and t.dim() > 1 else t for n, t in enumerate(tensors)]
        uploads.append(Upload(Client(f"c{k}", 1), {f"t{n}": t for n, t in enumerate(tensors)}, 1.3 + 0.7 * k))
    mean, expected = weighted_mean(iter(uploads)).params, one_by_one(uploads)
    assert list(mean) == list(expected)
    for name, tensor in mean.items():
        assert tensor.shape == expected[name].shape
        assert tensor.is_contiguous()
        near(tensor, expected[name], atol=1e-14)


def test_mean_has_the_bits_of_sequential_additions() -> None:
    """Sizes lie on both sides of a vector register and of a batch of additions; more uploads than are held at a time.
    Every third upload is one vector, every fourth has another order."""
    shapes = [(4, 1024)] * 40 + [(3, 5)] * 7 + [(17,)] * 3 + [()] * 2 + [(1000, 333)]
    uploads = []
    for k in range(11):
        params: Params = {f"t{n}": normal(100 * k + n, *shape).float() for n, shape in enumerate(shapes)}
        params = dict(reversed(params.items())) if k % 4 == 3 else params
        params = Packed.of(params) if k % 3 == 0 else params
        uploads.append(Upload(Client(f"c{k}", 1), params, 1.3 + 0.7 * k))
    expected = {n: torch.zeros(t.shape, dtype=torch.float64) for n, t in uploads[0].params.items()}
    for upload in uploads:
        for name, tensor in upload.params.items():
            expected[name] += upload.weight * tensor.double()
    mean = weighted_mean(uploads)
    assert {n: t for n, t in mean.params.items() if not torch.equal(t, expected[n] / mean.weight)} == {}


@pytest.mark.parametrize("one_vector", [False, True])
@pytest.mark.parametrize(
    ("second", "weight", "words"),
    [
        ({"a": (2,), "c": (3,)}, 1.0, "client c1 uploaded other tensors than the first: ['b', 'c']"),
        ({"a": (2,), "b": (4,)}, 1.0, "client c1: b is (4,), expected (3,)"),
        ({"a": (2,), "b": (3,)}, 0.0, "client c1: weight must be positive and finite, got 0.0"),
        ({"a": (2,), "b": (3,)}, math.nan, "client c1: weight must be positive and finite, got nan"),
    ],
)
def test_mismatched_uploads_are_refused(
    second: dict[str, tuple[int, ...]], weight: float, words: str, one_vector: bool
) -> None:
    uploads = []
    for k, (shapes, upload_weight) in enumerate((({"a": (2,), "b": (3,)}, 1.0), (second, weight))):
        params: Params = {name: torch.ones(shape) for name, shape in shapes.items()}
        uploads.append(Upload(Client(f"c{k}", 1), Packed.of(params) if one_vector else params, upload_weight))
    with pytest.raises(ValueError, match=re.escape(words)):
        weighted_mean(uploads)


def test_mean_holds_only_a_few_uploads_at_a_time() -> None:
    alive: list[weakref.ref[Tensor]] = []
    held: list[int] = []

    def stream() -> Iterator[Upload]:
        for k in range(30):
            held.append(sum(ref() is not None for ref in alive))
            packed = Packed.of({"t": normal(k, 3, 4)})
            alive.append(weakref.ref(packed.vector))
            yield Upload(Client(f"c{k}", 1), packed, 1.0)
            del packed

    assert weighted_mean(stream()).count == 30
    assert max(held) == 7, "the eighth is not counted yet"


# --- GrowingSum ---------------------------------------------------------------------------------------------------


def grown(seed: int, out: int, inp: int, ranks: Sequence[int], dtype: torch.dtype) -> tuple[list[LowRank], list[Any]]:
    """Chunks of these ranks, and the sums after each of them."""
    chunks = [draw(seed + 2 * i, out, inp, rank).to(dtype) for i, rank in enumerate(ranks)]
    return chunks, list(itertools.accumulate(chunks[1:], operator.add, initial=GrowingSum.of(chunks[0])))


def kept_numbers(change: GrowingSum) -> int:
    dense = 0 if change.dense is None else change.dense.numel()
    return change.recent.up.numel() + change.recent.down.numel() + dense


RANKS = st.lists(st.integers(1, 5), min_size=1, max_size=12)


@given(st.integers(0, 2**20), st.integers(1, 9), st.integers(1, 9), RANKS)
def test_growing_sum_is_the_sum_in_bounded_memory(seed: int, out: int, inp: int, ranks: list[int]) -> None:
    chunks, sums = grown(seed, out, inp, ranks, torch.float64)
    for count, change in enumerate(sums, 1):
        expected = sum((c.dense() for c in chunks[:count]), torch.zeros(out, inp, dtype=torch.float64))
        torch.testing.assert_close(change.factors().dense(), expected, rtol=0, atol=1e-12)
        assert change.count == count
        assert kept_numbers(change) <= 2 * out * inp
        assert (change.dense is None) == (sum(ranks[:count]) * (out + inp) <= out * inp)


@given(st.integers(0, 2**20), st.integers(1, 9), st.integers(1, 9), RANKS)
def test_client_gets_later_chunks_or_the_smaller_sum(seed: int, out: int, inp: int, ranks: list[int]) -> None:
    _, sums = grown(seed, out, inp, ranks, torch.float32)
    for held in range(len(ranks) + 1):
        lacking = sum(ranks[held:]) * (out + inp)
        assert sum(t.numel() for t in sums[-1].since(held)) == min(lacking, out * inp)


@given(st.integers(0, 2**20), st.integers(1, 9), st.integers(1, 9), RANKS, st.data())
def test_chunks_and_the_sum_give_the_same_bits(
    seed: int, out: int, inp: int, ranks: list[int], data: st.DataObject
) -> None:
    """A client that held an earlier sum, of which only the matrix is left to it, adds the chunks since."""
    _, sums = grown(seed, out, inp, ranks, torch.float32)
    held = data.draw(st.integers(1, len(ranks)))
    old, new = sums[held - 1], sums[-1]
    lacking = new.since(held)
    if len(lacking) == 1:
        assert lacking[0].equal(new.dense)
        return
    client, first = old.on(torch.device("cpu")), 0
    for rank in ranks[held:]:
        up, down = lacking[0][:, first : first + rank].clone(), lacking[1][first : first + rank].clone()
        client, first = client + LowRank(up, down), first + rank
    assert client.count == new.count
    assert client.factors().dense().equal(new.factors().dense())
    assert (client.dense is None) == (new.dense is None)


@pytest.mark.parametrize("rank", [1, 8])
def test_float32_sum_is_as_exact_as_its_stack(rank: int) -> None:
    """400 chunks: rounding the matrix once per chunk costs no more than rounding the chunks' factors."""
    out, inp, count = 24, 32, 400
    chunks = [draw(2 * i, out, inp, rank) for i in range(count)]
    exact = sum((c.dense() for c in chunks), torch.zeros(out, inp, dtype=torch.float64))
    single = [c.to(torch.float32) for c in chunks]
    dense = functools.reduce(operator.add, single[1:], GrowingSum.of(single[0])).dense
    stacked = sum(single[1:], single[0]).dense()
    assert dense is not None
    errors = [float((m.double() - exact).norm() / exact.norm()) for m in (dense, stacked)]
    assert errors[0] < 2 * errors[1]
    assert errors[0] < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dense_sum_has_the_chunks_type(dtype: torch.dtype) -> None:
    total = GrowingSum.of(draw(0, 4, 5, 3).to(dtype)) + draw(1, 4, 5, 1).to(dtype)
    assert total.dense is not None
    assert (total.dense.dtype, total.factors().up.dtype, total.factors().down.dtype) == (dtype,) * 3


def test_dense_sum_goes_to_a_device_without_its_chunks() -> None:
    """They would take its memory once more."""
    stacked = GrowingSum.of(draw(0, 6, 4, 2))
    dense = stacked + draw(5, 6, 4, 1)
    assert (stacked.dense is None, dense.dense is None) == (True, False)
    assert [c.on(torch.device("cpu")).recent.rank for c in (stacked, dense)] == [2, 0]
    for change in (stacked, dense):
        there = change.on(torch.device("cpu")).factors().dense()
        torch.testing.assert_close(there, change.factors().dense(), rtol=0, atol=0)


def test_growth_names_ranks_of_chunks_only() -> None:
    """A holder adds chunks rank by rank; a dense sum replaces what it has."""
    chunk = LowRank(torch.ones(4, 1), torch.ones(1, 12))
    total, chunks = GrowingSum.of(chunk), 9
    for _ in range(chunks - 1):
        total += chunk
    assert total.dense is not None
    whole, last, none = (total.growth(count) for count in (0, chunks - 1, chunks))
    assert (len(whole.tensors), tuple(whole.ranks)) == (1, ())
    assert (len(last.tensors), tuple(last.ranks)) == (2, (1,))
    assert tuple(none.ranks) == ()
