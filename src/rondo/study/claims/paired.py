"""Differences that are paired by seed: their mean, its 95 % interval, and Holm's correction over a table of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rondo.records.student import LEVEL, quantile, within

ROUNDING = 1e-9
"""The largest relative difference of two results of one calculation: in float64 some 1e-15, times hundreds of steps."""


@dataclass(frozen=True)
class Paired:
    """One difference per seed, and what Student's t says of their mean.

    - ``interval``: the 95 % interval of the mean; None of a single difference, which has none.
    - ``p``: the two-sided probability of a mean as far from zero, were the true one zero; 1 of a single difference.
    """

    differences: tuple[float, ...]
    mean: float
    sd: float
    interval: tuple[float, float] | None
    p: float

    @staticmethod
    def of(differences: Sequence[float]) -> Paired:
        """Raises :class:`ValueError` without differences."""
        if not differences:
            raise ValueError("no differences to take the mean of")
        mean, count = statistics.fmean(differences), len(differences)
        if count == 1:
            return Paired(tuple(differences), mean, 0.0, None, 1.0)
        sd = statistics.stdev(differences)
        error = sd / math.sqrt(count)
        half = quantile(LEVEL, count - 1) * error
        p = (1.0 if mean == 0 else 0.0) if error == 0 else 1 - within(abs(mean) / error, count - 1)
        return Paired(tuple(differences), mean, sd, (mean - half, mean + half), p)


def one_value(values: Sequence[float]) -> bool:
    """Whether several values are one but for rounding: then their number says nothing."""
    return len(values) > 1 and all(math.isclose(value, values[0], rel_tol=ROUNDING) for value in values)


def holm(probabilities: Sequence[float]) -> list[float]:
    """``probabilities`` of a table corrected for its length (Holm, 1979), in their order."""
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    corrected, largest = [0.0] * len(order), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * probabilities[index]))
        corrected[index] = largest
    return corrected
