"""The audits that tests use: they refute a right claim rarely, and a wrong one."""

from __future__ import annotations

import numpy as np
import pytest

from audits import epsilon_of_mu, gaussian, least_mu_at, refuted, right_guesses

pytest.importorskip("dp_accounting")
from rondo.privacy.accounts.accountant import epsilon


def canaries(mu: float, seed: int, count: int = 500) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    included = draw.random(count) < 0.5
    return included * mu + draw.normal(size=count), included


def test_right_claim_is_refuted_rarely() -> None:
    """One of twenty times at most; the bounds of 40 tries leave six."""
    tries = [canaries(1.0, seed) for seed in range(40)]
    assert sum(refuted(gaussian(1.0), 500, 150, right_guesses(*one, 150)) for one in tries) <= 6
    assert sum(least_mu_at(0.5, *one) > 1.0 for one in tries) <= 6


def test_wrong_claim_is_refuted() -> None:
    one = canaries(3.0, 0)
    assert refuted(gaussian(1.0), 500, 150, right_guesses(*one, 150))
    assert least_mu_at(1.5, *one) > 2.0


def test_epsilon_of_mu_is_the_accountants() -> None:
    assert epsilon_of_mu(1.0, 1e-4) == pytest.approx(epsilon(2.0, 1.0, 4, 1e-4), rel=1e-3)
