"""Epsilon against pinned figures, and its order in each argument."""

import math

import pytest

from rondo.privacy.accountant import epsilon


@pytest.mark.slow
def test_epsilon_is_the_pinned_one_of_pld() -> None:
    pytest.importorskip("dp_accounting.pld")
    finer = 6.768787373891  # with a grid of 1e-4
    assert finer <= epsilon(1.5, 0.04, 2250, 1e-5) <= finer * 1.001
    few = epsilon(1.5, 0.04, 10, 1e-5)
    assert few < epsilon(1.5, 0.04, 20, 1e-5)
    assert few < epsilon(1.5, 0.08, 10, 1e-5)
    assert few < epsilon(1.0, 0.04, 10, 1e-5)


def test_epsilon_without_steps_or_noise() -> None:
    assert epsilon(1.0, 0.1, 0, 1e-5) == 0.0
    assert epsilon(0.0, 0.1, 1, 1e-5) == math.inf
