"""The accountant of subsampled Gaussian steps against pins and limits."""

from __future__ import annotations

import math

import pytest

from rondo.privacy import accountant


def test_nothing_spent_without_steps_and_all_without_noise() -> None:
    assert accountant.epsilon(1.0, 0.1, 0, 1e-5) == 0.0
    assert accountant.epsilon(0.0, 0.1, 1, 1e-5) == math.inf


@pytest.mark.parametrize("bad", [(-1.0, 0.1, 1, 1e-5), (1.0, 0.0, 1, 1e-5), (1.0, 0.1, -1, 1e-5), (1.0, 0.1, 1, 1.0)])
def test_numbers_outside_their_range_are_refused(bad: tuple[float, float, int, float]) -> None:
    with pytest.raises(ValueError, match="no epsilon"):
        accountant.epsilon(*bad)


def test_epsilon_is_the_pinned_one() -> None:
    pytest.importorskip("dp_accounting")
    assert accountant.epsilon(1.5, 0.04, 2250, 1e-5) == pytest.approx(6.768787373891, rel=1e-6)
