"""Epsilon of rounds: pins, limits and order."""

import math

import pytest

from rondo.privacy.accountant import epsilon

pytest.importorskip("dp_accounting")


def test_epsilon_of_pinned_run():
    assert epsilon(1.5, 0.04, 2250, 1e-5) == pytest.approx(6.768787373891, abs=1e-9)


def test_epsilon_grows_with_rounds_and_q_and_falls_with_noise():
    middle = epsilon(1.0, 0.1, 20, 1e-3)
    assert epsilon(1.0, 0.1, 21, 1e-3) > middle
    assert epsilon(1.0, 0.2, 20, 1e-3) > middle
    assert epsilon(1.1, 0.1, 20, 1e-3) < middle


def test_epsilon_at_its_limits():
    assert epsilon(1.0, 0.1, 0, 1e-3) == 0
    assert math.isinf(epsilon(0.0, 0.1, 1, 1e-3))


@pytest.mark.parametrize(
    "numbers", [(-1.0, 0.1, 1, 1e-3), (1.0, 0.0, 1, 1e-3), (1.0, 0.1, -1, 1e-3), (1.0, 0.1, 1, 1.0)]
)
def test_epsilon_refuses_numbers_out_of_range(numbers):
    with pytest.raises(ValueError, match="no epsilon"):
        epsilon(*numbers)
