"""Epsilon of rounds: pins, limits and order."""

import math
import sys

import pytest

from rondo.errors import ConfigError
from rondo.privacy.accountant import epsilon

pytest.importorskip("dp_accounting")


def test_epsilon_of_pinned_run() -> None:
    assert epsilon(1.5, 0.04, 2250, 1e-5) == pytest.approx(6.768787373891, abs=1e-9)


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
