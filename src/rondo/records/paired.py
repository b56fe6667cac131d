"""Differences that are paired by seed: their mean, its 95 % interval, and Holm's correction over a table of them.
Imports no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

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

    @property
    def middle(self) -> float:
        """The mean; zero of equal scores, in sums that are rounded."""
        low, high = self.interval or (0.0, 0.0)
        return 0.0 if abs(self.mean) < ROUNDING * (high - low) else self.mean


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


@dataclass(frozen=True)
class Difference:
    """The differences of a method's scores to those of another one on the same rows.

    - ``to``: the other method.
    - ``by_pair``: the difference of each pair of runs, by what they share, such as a seed.
    - ``paired``: the same, with the interval of their mean.
    - ``p``: corrected by Holm for all methods of the table; None without an interval, and if all pairs have one value.
    """

    to: str
    by_pair: Mapping[str, float]
    paired: Paired
    p: float | None


def against(scores: Mapping[str, Mapping[str, float]], references: Mapping[str, str]) -> dict[str, Difference]:
    """The difference of each method to its reference; none of a method that shares no pair with it.

    ``scores``: the scores of each method, by what two runs must share to be a pair.
    ``references``: the reference of each method that has one.
    """
    pairs: dict[str, dict[str, float]] = {}
    for name, other in references.items():
        own, others = scores.get(name, {}), scores.get(other, {})
        pairs[name] = {pair: own[pair] - others[pair] for pair in own if pair in others}
    found = {name: Paired.of(list(of_pairs.values())) for name, of_pairs in pairs.items() if of_pairs}
    tested = [name for name, paired in found.items() if paired.interval and not one_value(paired.differences)]
    corrected = dict(zip(tested, holm([found[name].p for name in tested]), strict=True))
    return {name: Difference(references[name], pairs[name], one, corrected.get(name)) for name, one in found.items()}


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
