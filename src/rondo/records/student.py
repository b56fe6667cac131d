"""Student's t: the interval of a mean over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache

LEVEL = 0.95


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


@cache
def quantile(level: float, freedom: int) -> float:
    """The t whose interval [-t, t] has the probability ``level``."""
    low, high = 0.0, 1.0
    while within(high, freedom) < level:
        high *= 2
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (middle, high) if within(middle, freedom) < level else (low, middle)
    return high


def half_interval(values: Sequence[float]) -> float | None:
    """Half the length of the 95 % interval of the mean of ``values``; None of a single value, which has none."""
    if len(values) < 2:
        return None
    return quantile(LEVEL, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def interval(values: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean of ``values``; None of less than two."""
    half = half_interval(values)
    return None if half is None else (statistics.fmean(values) - half, statistics.fmean(values) + half)
