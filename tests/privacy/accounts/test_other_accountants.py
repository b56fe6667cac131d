"""Epsilon beside two accountants of opacus: Renyi's (RDP) and the numerical one of Gopi et al. 2021 (PRV)."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pytest

from rondo.privacy.accounts.accountant import epsilon

pytest.importorskip("dp_accounting")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    accountants = pytest.importorskip("opacus.accountants")


def beside(accountant: Any, noise: float, sampled: float, rounds: int, delta: float) -> float:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = accountant()
        other.history = [(noise, sampled, rounds)]
        return float(other.get_epsilon(delta=delta))


def test_pins_of_other_accountants() -> None:
    """The pinned run of ``test_accountant.py`` there, which shows that they are asked rightly."""
    assert beside(accountants.RDPAccountant, 1.5, 0.04, 2250, 1e-5) == pytest.approx(7.32911117144, abs=1e-6)
    assert beside(accountants.PRVAccountant, 1.5, 0.04, 2249, 1e-5) == pytest.approx(6.77739571, abs=1e-6)


@pytest.mark.parametrize("case", [0, *(pytest.param(case, marks=pytest.mark.slow) for case in range(1, 100))])
def test_epsilon_is_below_renyis_and_next_to_the_numerical_one(case: int) -> None:
    """opacus returns the upper end of PRV's interval, whose error is 0.01 by default."""
    draw = random.Random(case)
    noise, sampled = draw.uniform(0.7, 4), 10 ** draw.uniform(-2.5, -0.3)
    rounds, delta = int(10 ** draw.uniform(0.5, 3.2)), 10 ** draw.uniform(-6, -3)
    found = epsilon(noise, sampled, rounds, delta)
    assert found <= beside(accountants.PRVAccountant, noise, sampled, rounds, delta) <= found + 0.03
    assert found <= beside(accountants.RDPAccountant, noise, sampled, rounds, delta)
