"""Epsilon of rounds of the Gaussian mechanism, by the privacy loss distributions of dp-accounting.

Neighbours differ by one unit added or removed. A unit takes part in a round with probability q, by itself (Poisson);
q = 1 is full participation. Where q follows from anything that an adversary knows, q is 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any

from rondo.config.packages import missing
from rondo.config.rules.privacy import LEAST_NOISE
from rondo.errors import ConfigError, Problem

_CELLS = (1e-2, 1e-3, 1e-4)
"""Widths of the cells into which privacy losses are rounded up, in the order in which they are tried. The last is
dp-accounting's own."""
_MOST_CELLS = 1e5
"""Cells in an epsilon from which on smaller ones are not tried: they would take gigabytes. So an epsilon up to 100 is
dp-accounting's own."""


def epsilon(noise: float, sampled: float, rounds: int, delta: float) -> float:
    """An upper bound of epsilon at ``delta`` after ``rounds`` rounds of noise multiplier ``noise`` and q = ``sampled``.

    Infinite without noise; 0 after no round. Raises ValueError for a number out of its range, ConfigError without the
    package dp-accounting.
    """
    if not (math.isfinite(noise) and noise >= 0 and 0 < sampled <= 1 and rounds >= 0 and 0 < delta < 1):
        raise ValueError(f"no epsilon of {rounds} rounds of noise {noise}, q {sampled}, delta {delta}")
    return epsilon_of_steps({(noise, sampled): rounds}, delta)


def epsilon_of_steps(steps: Mapping[tuple[float, float], int], delta: float, enough: float = 0.0) -> float:
    """Epsilon at ``delta`` of everything in ``steps``: how many of each (noise multiplier, q). Infinite where one of
    them has no noise. ``enough``: a bound that is not above it need not be close. Raises as :func:`epsilon` does."""
    taken = {kind: count for kind, count in steps.items() if count}
    if any(noise == 0 for noise, _ in taken):
        return math.inf
    if not taken:
        return 0.0
    return _composed(tuple(sorted(taken.items(), reverse=True)), delta, enough)


@lru_cache(maxsize=4096)  # up to some seconds each; the runs of one comparison ask for the same ones
def _composed(steps: tuple[tuple[tuple[float, float], int], ...], delta: float, enough: float) -> float:
    for cell in _CELLS:
        whole = _losses().identity(value_discretization_interval=cell)
        for (noise, sampled), count in steps:
            whole = whole.compose(_step(noise, sampled, cell).self_compose(count))
        found = float(whole.get_epsilon_for_delta(delta))
        if found <= enough or found > _MOST_CELLS * cell:
            break
    return found


@lru_cache(maxsize=96)  # MB each; the steps of a client are of one kind in every round
def _step(noise: float, sampled: float, cell: float) -> Any:
    """The privacy loss of one step, in cells of width ``cell``."""
    return _losses().from_gaussian_mechanism(noise, value_discretization_interval=cell, sampling_prob=sampled)


def noise_for(epsilon_wanted: float, sampled: float, rounds: int, delta: float) -> float:
    """The smallest noise multiplier that a run may have and whose epsilon is at most ``epsilon_wanted``, to half a per
    cent above."""
    low, high = 0.0, 1.0
    while epsilon(high, sampled, rounds, delta) > epsilon_wanted:
        low, high = high, 2 * high
    while high - low > 5e-3 * high and high > LEAST_NOISE:
        middle = max((low + high) / 2, LEAST_NOISE)
        low, high = (low, middle) if epsilon(middle, sampled, rounds, delta) <= epsilon_wanted else (middle, high)
    return high


def _losses() -> Any:
    """dp-accounting's privacy loss distributions. Raises :class:`ConfigError` without that package."""
    try:
        import_module("dp_accounting")
        return import_module("dp_accounting.pld.privacy_loss_distribution")
    except ModuleNotFoundError as error:
        raise ConfigError([Problem("privacy.unit", missing("dp_accounting"))]) from error
