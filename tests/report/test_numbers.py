"""Numbers as people read them: digits that fit, differences with intervals, probabilities."""

from __future__ import annotations

import pytest

from rondo.records.paired import Paired
from rondo.report.numbers import difference, plus_minus, probability, share_interval


@pytest.mark.parametrize(
    ("mean", "spread", "shown"),
    [
        (0.75123, 0.0031, "0.7512 ± 0.0031"),
        (0.7, 0.0996, "0.700 ± 0.100"),
        (0.3, 1.5, "0.3 ± 1.5"),
        (1234.5, 120.0, "1234 ± 120"),
        (0.5, 0.0, "0.5 ± 0"),
        (0.75123, None, "0.7512"),
        (None, None, "-"),
        (1.5e-9, 2e-10, "1.5e-09 ± 2e-10"),
    ],
)
def test_mean_has_the_places_of_its_spread(mean: float | None, spread: float | None, shown: str) -> None:
    assert plus_minus(mean, spread) == shown


def test_difference_has_an_interval_unless_of_one_seed_or_value() -> None:
    assert difference(Paired.of([0.01, 0.03, 0.02])) == "+0.020 [-0.005, +0.045]"
    assert difference(Paired.of([-0.01])) == "-0.01"
    assert difference(Paired.of([0.02, 0.02])) == "+0.02, the same for all seeds"
    assert difference(Paired.of([0.1 + 0.2 - 0.3, 0.3, -0.3])).startswith("0.00 [")


def test_probability_that_is_rounding_has_no_digits() -> None:
    assert [probability(p) for p in (None, 0.0312, 1e-15)] == ["-", "0.031", "< 1e-12"]


def test_interval_of_a_share_is_wilsons() -> None:
    """The second is Newcombe's first example (1998): 81 of 263."""
    assert share_interval(1.0, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert share_interval(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
