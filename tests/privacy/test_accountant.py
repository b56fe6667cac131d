"""Epsilon of rounds: pins, limits and order."""

import math
import sys

import pytest

from rondo.errors import ConfigError
from rondo.privacy.accountant import epsilon, epsilon_of_sums, noise_for

pytest.importorskip("dp_accounting")


def test_epsilon_of_pinned_run() -> None:
    """The second value is that of processors without AVX-512, where products are added in another order."""
    found = epsilon(1.5, 0.04, 2250, 1e-5)
    assert found in (pytest.approx(6.768787373891, abs=1e-9), pytest.approx(6.768787377009, abs=1e-9))


@pytest.mark.slow
def test_epsilon_grows_with_rounds_and_q_and_falls_with_noise() -> None:
    middle = epsilon(1.0, 0.1, 20, 1e-3)
    assert epsilon(1.0, 0.1, 21, 1e-3) > middle
    assert epsilon(1.0, 0.2, 20, 1e-3) > middle
    assert epsilon(1.1, 0.1, 20, 1e-3) < middle


def test_epsilon_at_its_limits() -> None:
    assert epsilon(1.0, 0.1, 0, 1e-3) == 0
    assert math.isinf(epsilon(0.0, 0.1, 1, 1e-3))


@pytest.mark.parametrize(
    "numbers", [(-1.0, 0.1, 1, 1e-3), (1.0, 0.0, 1, 1e-3), (1.0, 0.1, -1, 1e-3), (1.0, 0.1, 1, 1.0)]
)
def test_epsilon_refuses_numbers_out_of_range(numbers: tuple[float, float, int, float]) -> None:
    with pytest.raises(ValueError, match="no epsilon"):
        epsilon(*numbers)


def test_missing_package_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match=r"privacy\.unit: .*dp-accounting>=0\.6"):
        epsilon(1.0, 0.1, 1, 1e-3)


def test_two_sums_of_a_round_cost_as_one_with_less_noise() -> None:
    assert epsilon_of_sums(2.0, {(2, 0.1): 5}, 1e-3) == epsilon(2.0 / math.sqrt(2), 0.1, 5, 1e-3)
    once, again = epsilon_of_sums(2.0, {(1, 1.0): 5}, 1e-3), epsilon_of_sums(2.0, {(1, 1.0): 4, (2, 1.0): 1}, 1e-3)
    assert once < again
    assert again == pytest.approx(epsilon(2.0, 1.0, 6, 1e-3), rel=1e-3)  # without sampling, sums are rounds


@pytest.mark.slow
def test_noise_for_an_epsilon_is_the_smallest() -> None:
    noise = noise_for(2.0, 1.0, 5, 1e-3)
    assert epsilon(noise, 1.0, 5, 1e-3) <= 2.0 < epsilon(noise * 0.994, 1.0, 5, 1e-3)
