"""The law of the discrete Gaussian numbers: exact probabilities, moments, tails, and decisions by more bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from rondo.privacy.mechanism import discrete
from rondo.privacy.mechanism.discrete import LARGEST, discrete_gaussian
from rondo.privacy.mechanism.noise import SecretStream

MANY = 200_000
PINNED = [532476199, 335991588, 921242846, -621284127, 428105172]
"""Numbers of deviation 10^9 from seed 7."""


def drawn(deviation: int, count: int = MANY, seed: int = 0) -> NDArray[np.int64]:
    return discrete_gaussian(deviation, count, SecretStream(seed, "test").words)


def exact(deviation: int, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """The probabilities of ``numbers``."""
    reach = np.arange(-12 * deviation, 12 * deviation + 1)
    return np.exp(-(numbers**2) / (2 * deviation**2)) / np.exp(-(reach**2) / (2 * deviation**2)).sum()


def chi_square(seen: NDArray[np.int64], expected: NDArray[np.float64]) -> float:
    """In deviations from its mean."""
    assert expected.min() >= 5
    return float((((seen - expected) ** 2 / expected).sum() - (len(seen) - 1)) / math.sqrt(2 * (len(seen) - 1)))


def distance(deviation: int, numbers: NDArray[np.int64], width: int = 1) -> float:
    """Chi-square of bins of ``width`` numbers within 3 deviations, and of both tails together."""
    inside = np.arange(-3 * deviation, 3 * deviation + 1)[: (6 * deviation + 1) // width * width]
    starts = np.arange(0, len(inside), width)
    expected = np.add.reduceat(exact(deviation, inside), starts)
    places = (numbers - inside[0])[(numbers >= inside[0]) & (numbers <= inside[-1])]
    seen = np.bincount(places // width, minlength=len(expected))
    outside = len(numbers) - len(places)
    expected = np.append(expected, 1 - expected.sum()) * len(numbers)
    return chi_square(np.append(seen, outside), expected)


@pytest.mark.parametrize(("deviation", "width"), [(1, 1), (2, 1), (3, 1), (7, 1), (50, 1), (1000, 10), (4099, 30)])
def test_numbers_have_the_exact_probabilities(deviation: int, width: int) -> None:
    assert abs(distance(deviation, drawn(deviation), width)) < 4


def test_large_deviations_are_gaussian_down_to_the_last_bits() -> None:
    deviation = 3 * 2**40 + 1
    numbers = drawn(deviation)
    quantiles = np.quantile(
        numbers / deviation, [0.0013499, 0.0227501, 0.1586553, 0.5, 0.8413447, 0.9772499, 0.9986501]
    )
    assert np.abs(quantiles - np.arange(-3, 4)).max() < 0.05
    for modulus in (2, 3, 16, 97):
        seen = np.bincount(numbers % modulus, minlength=modulus)
        assert abs(chi_square(seen, np.full(modulus, MANY / modulus))) < 4


@pytest.mark.parametrize("deviation", [1, 5, 10**6, LARGEST])
def test_moments_are_those_of_the_law(deviation: int) -> None:
    scaled = drawn(deviation) / deviation
    known = exact(1, np.arange(-9, 10)) if deviation == 1 else None
    variance = 1.0 if known is None else float((known * np.arange(-9, 10) ** 2).sum())
    assert abs(scaled.mean()) < 4 / math.sqrt(MANY)
    assert abs(scaled.var() - variance) < 4 * math.sqrt(2 / MANY)
    assert abs((scaled**3).mean()) < 4 * math.sqrt(15 / MANY)
    assert abs((scaled**4).mean() - 3) < 4 * math.sqrt(96 / MANY) + (0.01 if known is not None else 0)
    assert abs(np.corrcoef(scaled[1:], scaled[:-1])[0, 1]) < 4 / math.sqrt(MANY)


def test_tails_are_there_and_no_longer() -> None:
    numbers = np.abs(drawn(10**6, 10**6)) / 10**6
    for bound in (3.0, 4.0, 4.5):
        expected = 10**6 * math.erfc(bound / math.sqrt(2))
        assert abs((numbers > bound).sum() - expected) < 4 * math.sqrt(expected) + 1
    assert 4.5 < numbers.max() < 6.5


def test_undecided_numbers_are_decided_by_more_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every decision in exact arithmetic is that of floating-point arithmetic with its margin."""
    further = SecretStream(1, "further")

    def words() -> Callable[[int], NDArray[np.uint64]]:
        stream = SecretStream(0, "test")
        return lambda count: stream.words(count) if count > 1 else further.words(count)

    for deviation in (1, 3, 12345, 2**50 + 1):
        quick = discrete_gaussian(deviation, 1000, words())
        with monkeypatch.context() as patch:
            patch.setattr(discrete, "_MARGIN", 2.0)
            assert discrete_gaussian(deviation, 1000, words()).tolist() == quick.tolist()


@pytest.mark.slow
def test_first_bits_that_leave_a_number_open_are_drawn_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """With four bits at first, many are open, and the law is the same."""
    monkeypatch.setattr(discrete, "_FIRST", 4)
    monkeypatch.setattr(discrete, "_MARGIN", 2.0**-3)
    tails = [int(math.exp(-k) * 16) for k in range(5)]
    monkeypatch.setattr(discrete, "_TAILS", np.array(tails, np.uint64))
    assert tails[-1] == 0
    assert abs(distance(2, drawn(2, 5000))) < 4
    stream = SecretStream(2, "geometric")
    found = discrete._geometric(stream.words(5000) >> np.uint64(60), stream.words)
    expected = [5000 * (math.exp(-k) - math.exp(-k - 1)) for k in range(6)]
    seen = np.bincount(found, minlength=8)
    assert abs(chi_square(np.append(seen[:6], seen[6:].sum()), np.append(expected, 5000 * math.exp(-6)))) < 4


def test_bounds_of_the_first_bits_are_exact() -> None:
    with localcontext(prec=80):
        assert [int(t) for t in discrete._TAILS] == [int(Decimal(-k).exp() * 2**32) for k in range(24)]
    for bits in (32, 96, 160):
        with localcontext(prec=300):
            for exponent in (Fraction(1, 3), Fraction(40), Fraction(10**20, 10**18 + 7)):
                true = (-Decimal(exponent.numerator) / exponent.denominator).exp() * 2**bits
                assert abs(discrete._scaled(exponent, bits) + Decimal("0.5") - true) < Decimal("0.5000000001")


def test_same_seed_gives_the_same_numbers_on_every_machine() -> None:
    assert drawn(10**9, 5, seed=7).tolist() == PINNED
    assert drawn(10**9, 5, seed=8).tolist() != PINNED
    system = [discrete_gaussian(10**9, 5, SecretStream().words).tolist() for _ in range(2)]
    assert system[0] != system[1]


def test_deviations_out_of_range_are_refused() -> None:
    for deviation in (0, -1, LARGEST + 1):
        with pytest.raises(ValueError, match=r"a deviation is from 1 to 2\^58"):
            drawn(deviation, 1)
    assert drawn(1, 0).shape == (0,)


@pytest.mark.parametrize("bug", ["zero twice", "no rejection", "rest below the scale left out", "noise halved"])
def test_planted_bug_breaks_the_law(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    deviation = 3
    if bug == "zero twice":
        real = discrete_gaussian

        def numbers() -> NDArray[np.int64]:
            zeros = np.zeros(round(MANY * 0.06), np.int64)
            return np.concatenate([real(deviation, MANY, SecretStream(0).words), zeros])

    elif bug == "no rejection":
        monkeypatch.setattr(discrete.np, "exp", lambda x: np.ones_like(x))
        numbers = lambda: drawn(deviation)  # noqa: E731
    elif bug == "rest below the scale left out":
        numbers = lambda: drawn(deviation) // deviation * deviation  # noqa: E731
    else:
        numbers = lambda: drawn(deviation // 2)  # noqa: E731
    found = numbers()
    monkeypatch.undo()
    assert abs(distance(deviation, found)) > 10
