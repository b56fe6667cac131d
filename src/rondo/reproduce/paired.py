"""Differences that are paired by seed: their mean, its 95 % interval, and Holm's correction over a table of them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95


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


def within(t: float, freedom: int) -> float:
    """The probability that Student's t of ``freedom`` whole degrees lies in [-t, t] (Abramowitz and Stegun, 26.7.3 and
    26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = freedom % 2
    if freedom == 1:
        return 2 * angle / math.pi
    term = total = cosine if odd else 1.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def quantile(level: float, freedom: int) -> float:
    """The t whose interval [-t, t] has the probability ``level``."""
    low, high = 0.0, 1.0
    while within(high, freedom) < level:
        high *= 2
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if within(middle, freedom) < level else (low, middle)
    return high


def holm(probabilities: Sequence[float]) -> list[float]:
    """``probabilities`` of a table corrected for its length (Holm, 1979), in their order."""
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    corrected, largest = [0.0] * len(order), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * probabilities[index]))
        corrected[index] = largest
    return corrected
