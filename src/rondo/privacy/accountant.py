"""Epsilon of rounds of the Gaussian mechanism, by the privacy loss distributions of dp-accounting.

Neighbours differ by one unit added or removed. A unit takes part in a round with probability q, by itself (Poisson);
q = 1 is full participation. Where q follows from anything that an adversary knows, q is 1.
"""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

from rondo.config.packages import missing
from rondo.errors import ConfigError, Problem


def epsilon(noise: float, sampled: float, rounds: int, delta: float) -> float:
    """An upper bound of epsilon at ``delta`` after ``rounds`` rounds of noise multiplier ``noise`` and q = ``sampled``.

    Infinite without noise; 0 after no round. Raises ValueError for a number out of its range, ConfigError without the
    package dp-accounting.
    """
    if not (math.isfinite(noise) and noise >= 0 and 0 < sampled <= 1 and rounds >= 0 and 0 < delta < 1):
        raise ValueError(f"no epsilon of noise {noise}, q {sampled}, {rounds} rounds, delta {delta}")
    if rounds == 0:
        return 0.0
    if noise == 0:
        return math.inf
    event, pld = _package("dp_accounting"), _package("dp_accounting.pld")
    one = event.PoissonSampledDpEvent(sampled, event.GaussianDpEvent(noise))
    accountant = pld.PLDAccountant(event.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(event.SelfComposedDpEvent(one, rounds))
    return float(accountant.get_epsilon(delta))


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigError([Problem("privacy.unit", missing("dp_accounting"))]) from error
