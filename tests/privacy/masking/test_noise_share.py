"""The shares of noise in a masked sum: their size, the bound on a change's integers, and the account."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from rondo.privacy.accounts.accountant import epsilon
from rondo.privacy.masking import integers
from rondo.privacy.masking.integers import CLOSENESS, NUMBERS, FixedPoint, NoiseShare, epsilon_of_shares, stream_of
from rondo.privacy.masking.shares import threshold_of
from rondo.privacy.mechanism.discrete import LARGEST

SHARE = NoiseShare.of(32, 2.0, 10, 1.5, 1)
UNITS = 2.0**SHARE.points.fraction


def test_honest_shares_of_the_fewest_sites_make_the_noise() -> None:
    """No less than it, rounding included, and no more than its smoothing and rounding take."""
    draw = random.Random(0)
    for _ in range(200):
        colluding = draw.randint(0, 4)
        clip, noise = 10 ** draw.uniform(-6, 3), 10 ** draw.uniform(-2, 3)
        share = NoiseShare.of(64, clip, draw.randint(1, 300), noise, colluding)
        threshold = colluding + draw.randint(1, 100)
        honest, whole = threshold - colluding, Fraction(noise) * Fraction(clip) * 2**share.points.fraction
        deviation = share.deviation(threshold)
        assert whole**2 + 4 * honest <= honest * deviation**2
        assert honest * (deviation - 1) ** 2 < whole**2 + 4 * honest
        assert deviation <= LARGEST


def test_no_share_where_no_honest_site_is_left() -> None:
    for threshold in (0, 1):
        with pytest.raises(ValueError, match=r"of . sites that open a sum, 1 may collude: nobody's noise counts"):
            SHARE.deviation(threshold)


@pytest.mark.parametrize("ring", [32, 64])
def test_sum_with_noise_has_room_in_the_ring(ring: int) -> None:
    draw = random.Random(ring)
    for _ in range(200):
        colluding, most = draw.randint(0, 5), draw.randint(1, 200)
        share = NoiseShare.of(ring, 1.0, most, draw.uniform(0.1, 30.0), colluding)  # type: ignore[arg-type]
        for sites in range(1, most + 1):
            if threshold_of(sites) > colluding:
                noise = 16 * share.deviation(threshold_of(sites)) * math.sqrt(sites)
                # A share is rounded up, by a unit and its smoothing at most.
                assert most * 2**share.points.fraction + noise < 2 ** (ring - 1)


def test_ring_without_room_for_the_noise_is_refused() -> None:
    assert NoiseShare.of(32, 1.0, 10, 100.0, 1).points.fraction == 18
    with pytest.raises(ValueError, match="fractional bits"):
        NoiseShare.of(32, 1.0, 10, 1000.0, 1)
    assert NoiseShare.of(64, 1.0, 10, 1000.0, 1).points.fraction > 40


def test_integers_are_within_the_clip_after_rounding() -> None:
    draw = torch.Generator().manual_seed(0)
    coarse = NoiseShare(FixedPoint(32, 4, 2.0), 1.5, 1)  # 32 units
    for share in (SHARE, coarse):
        limit = share.points.clip * 2**share.points.fraction
        for size in (1, 2, 900):
            for scale in (0.0, 1e-300, 0.01, 1.0, 1e300):
                change = scale * torch.randn(size, generator=draw, dtype=torch.float64)
                numbers = share.encode(change)
                assert sum(x * x for x in numbers.tolist()) <= limit**2
    exactly = torch.full(
        (900,), 2.0 / 30, dtype=torch.float64
    )  # each is 1.07 units, and rounding it up would be longer
    assert float(coarse.encode(exactly * 1.4).double().norm()) <= 32
    short = torch.tensor([1.0, -0.25], dtype=torch.float64)
    assert SHARE.encode(short).tolist() == [UNITS, -UNITS / 4]


def test_change_without_integers_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        SHARE.encode(torch.tensor([math.nan], dtype=torch.float64))
    with pytest.raises(ValueError, match="10000 numbers are too many for integers of norm 2"):
        NoiseShare(FixedPoint(32, 4, 2.0), 1.5, 1).encode(torch.zeros(10_000, dtype=torch.float64))


def test_clip_left_out_is_seen_after_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integers, "clipped", lambda change, bound: change)
    with pytest.raises(ValueError, match="longer than the clip after rounding"):
        SHARE.encode(torch.tensor([2.0, 0.01], dtype=torch.float64))


def test_noise_is_of_the_right_size_and_other_each_time() -> None:
    for threshold in (2, 7, 68):
        one = SHARE.drawn(threshold, 40_000, stream_of(None, 0, "ann")) / UNITS
        other = SHARE.drawn(threshold, 40_000, stream_of(None, 0, "ann")) / UNITS
        expected = 1.5 * 2.0 / math.sqrt(threshold - 1)
        assert one.std() == pytest.approx(expected, rel=0.02)
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.03


def test_noise_of_a_debug_seed_is_one_stream_per_sum_and_site() -> None:
    def numbers(*where: object) -> list[int]:
        return SHARE.drawn(7, 5, stream_of(*where)).tolist()  # type: ignore[arg-type]

    first = numbers(3, 0, "ann")
    assert first == numbers(3, 0, "ann")
    assert len({tuple(n) for n in (first, numbers(4, 0, "ann"), numbers(3, 1, "ann"), numbers(3, 0, "bob"))}) == 4


def test_norm_of_the_noise_is_within_its_reach() -> None:
    for count in (1, 100, 10_000):
        total = sum(SHARE.drawn(7, count, stream_of(0, 0, str(k))) for k in range(10)) / UNITS  # type: ignore[operator]
        norm = float(np.linalg.norm(total))
        assert norm <= SHARE.reach(7, 10, count)
        assert count < 100 or norm > 0.3 * SHARE.reach(7, 10, count)


# --- the account --------------------------------------------------------------------------------------------------


def gaussian(deviation: float) -> np.ndarray:
    """The discrete Gaussian's probabilities from -REACH to REACH."""
    weights = np.exp(-(PLACES**2) / (2 * deviation**2))
    return weights / weights.sum()


REACH = 400
PLACES = np.arange(-REACH, REACH + 1)


def of_sum(deviation: float, shares: int) -> np.ndarray:
    law = gaussian(deviation)
    for _ in range(shares - 1):
        law = np.convolve(law, gaussian(deviation))[REACH:-REACH]
    return law


def rounded(deviation: float, variance: float) -> np.ndarray:
    """The probabilities of Gaussian noise that is rounded by a discrete Gaussian of ``variance``."""
    step = 1 / 64
    law = np.zeros(len(PLACES))
    for y in np.arange(-8 * deviation, 8 * deviation, step):
        weights = np.exp(-((PLACES - y) ** 2) / (2 * variance))
        law += weights / weights.sum() * math.exp(-(y**2) / (2 * deviation**2))
    return law / law.sum()


def bound(deviation: float, shares: int, smoothing: float) -> float:
    """The bound of docs/dev/adr/0028 on the logarithm of the ratio."""
    of_shares = 10 * sum(math.exp(-2 * math.pi**2 * deviation**2 * k / (k + 1)) for k in range(1, shares))
    eta = 2 * sum(math.exp(-2 * math.pi**2 * smoothing * j * j) for j in range(1, 30))
    return of_shares + 3 * eta


@pytest.mark.parametrize(("deviation", "shares", "smoothing"), [(0.7, 3, 0.25), (0.8, 4, 0.3), (1.0, 2, 0.2)])
def test_sum_of_shares_is_as_near_to_rounded_noise_as_the_bound(
    deviation: float, shares: int, smoothing: float
) -> None:
    """Where both are coarse enough to differ at all."""
    law = of_sum(deviation, shares)
    near = np.abs(PLACES) <= 4 * deviation
    ratio = np.log(law[near] / rounded(math.sqrt(shares * deviation**2 - smoothing), smoothing)[near])
    assert 1e-6 < np.abs(ratio).max() <= bound(deviation, shares, smoothing)


def test_bound_of_the_smallest_shares_is_the_constant() -> None:
    """Three units are the smallest, and a share's variance has four for the rounding."""
    assert NoiseShare(FixedPoint(32, 16, 1e-6), 1e-6, 0).deviation(50) == 3
    assert bound(3, 2**20, 4) < CLOSENESS


@pytest.mark.slow
@pytest.mark.parametrize("honest", [1, 2, 5])
def test_shares_are_as_private_as_gaussian_noise(honest: int) -> None:
    """The exact loss of a change by the whole clip in one number, beside the accountant's epsilon."""
    pytest.importorskip("dp_accounting")
    share = NoiseShare(FixedPoint(32, 3, 2.0), 1.0, 2)
    deviation, change = share.deviation(honest + 2), 16
    law = of_sum(deviation, honest)
    law = np.where(law < 1e-300, 0.0, law)
    for delta in (1e-2, 1e-4):
        claimed = epsilon_of_shares({(1.0, 1.0): 1}, 1, delta)
        other = np.roll(law, change)
        assert np.maximum(law - math.exp(claimed) * other, 0).sum() <= delta
        less = replace(share, noise=0.8)
        law_of_less = of_sum(less.deviation(honest + 2), honest)
        assert np.maximum(law_of_less - math.exp(claimed) * np.roll(law_of_less, change), 0).sum() > delta


@pytest.mark.slow
def test_epsilon_has_the_distance_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dp_accounting")
    steps, plain = {(2.0, 1.0): 5}, epsilon(2.0, 1.0, 5, 1e-3)
    assert epsilon_of_shares(steps, 5, 1e-3) == pytest.approx(plain, abs=1e-12)
    assert epsilon_of_shares({}, 0, 1e-3) == 0
    monkeypatch.setattr(integers, "CLOSENESS", 0.01 / NUMBERS)
    assert epsilon_of_shares(steps, 5, 1e-3) == pytest.approx(epsilon(2.0, 1.0, 5, 1e-3 * math.exp(-0.05)) + 0.1)
