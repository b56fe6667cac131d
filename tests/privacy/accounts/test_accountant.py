"""Epsilon of rounds: pins, limits and order."""

import math
import sys

import pytest

from rondo.config.rules.privacy import LEAST_NOISE
from rondo.errors import ConfigError
from rondo.privacy.accounts.accountant import epsilon, epsilon_of_steps, noise_for

dp_accounting = pytest.importorskip("dp_accounting")
from dp_accounting.gaussian_mechanism import get_epsilon_gaussian  # noqa: E402
from dp_accounting.pld import PLDAccountant  # noqa: E402


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


@pytest.mark.parametrize("steps", [{(2.0, 0.05): 30}, {(2.0, 0.5): 7, (1.5, 1.0): 2}])
def test_epsilon_is_that_of_dp_accounting(steps: dict[tuple[float, float], int]) -> None:
    """Bit for bit, up to 100."""
    other = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    for (noise, sampled), count in steps.items():
        one = dp_accounting.PoissonSampledDpEvent(sampled, dp_accounting.GaussianDpEvent(noise))
        other.compose(dp_accounting.SelfComposedDpEvent(one, count))
    assert epsilon_of_steps(steps, 1e-5) == other.get_epsilon(1e-5)


def test_bound_that_is_enough_is_one() -> None:
    steps = {(1.0, 0.01): 1000}
    exact = epsilon_of_steps(steps, 1e-5)
    assert exact < epsilon_of_steps(steps, 1e-5, enough=1.1 * exact) <= 1.1 * exact
    assert epsilon_of_steps(steps, 1e-5, enough=0.9 * exact) == exact


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("noise", "steps"), [(1.0, 100), (1.0, 1000), (1.0, 10**5), (0.02, 1), pytest.param(0.2, 1, marks=pytest.mark.slow)]
)
def test_epsilon_in_cells_of_each_width_is_next_to_the_exact_one(noise: float, steps: int) -> None:
    """All rows in each step: Gaussian noise. In the smallest cells, the largest of these would take 10 GB. Above 700,
    where exp(-epsilon) is 0 to dp-accounting, it may be 2 more."""
    exact = get_epsilon_gaussian(noise / math.sqrt(steps), 1e-5)
    assert exact <= epsilon(noise, 1.0, steps, 1e-5) <= exact * (1 + 1e-6) + 2 * (exact > 700)


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


@pytest.mark.slow
def test_noise_for_an_epsilon_is_the_smallest() -> None:
    noise = noise_for(2.0, 1.0, 5, 1e-3)
    assert epsilon(noise, 1.0, 5, 1e-3) <= 2.0 < epsilon(noise * 0.994, 1.0, 5, 1e-3)


@pytest.mark.slow
def test_noise_is_never_less_than_a_run_may_have() -> None:
    assert noise_for(1000.0, 1.0, 5, 1e-3) == LEAST_NOISE
