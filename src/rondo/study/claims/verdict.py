"""The verdict on a paper's claim: from differences over seeds, or from values that a bound is on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rondo.records.student import LEVEL, quantile
from rondo.study.claims.paired import Paired, one_value

Word = Literal["holds", "holds in direction", "refuted", "open"]

_MOST = 1000
"""The most seeds that are named to decide an open claim."""
_BY_P = f"but p, corrected for the other claims, is not below {1 - LEVEL:.2g}"


@dataclass(frozen=True)
class Verdict:
    """A verdict, its reason, and for an open claim a number of seeds that would decide it if mean and deviation stay,
    whatever the other claims of the table come to (None where the reason says why there is none)."""

    word: Word
    reason: str
    seeds: int | None = None


def judge(paired: Paired, p: float, paper: float | None, claims: int = 1) -> Verdict:
    """Hold differences against half of the paper's effect, the least that would still be its claim.

    ``p``: that of ``paired``, corrected for the other claims of the table.
    ``paper``: the paper's effect, above zero in the direction of its claim; None if it prints none, and then only the
    direction can hold.
    ``claims``: how many ``p`` is corrected for.

    Significantly above zero and at least the half: *holds*. Above zero only: *holds in direction*. Otherwise *refuted*
    if the 95 % interval excludes the half (without a number: zero, from below), and *open* if not.
    """
    if paired.interval is None:
        return Verdict("open", "one seed has no interval")
    least = 0.0 if paper is None else paper / 2
    low, high = paired.interval
    if paired.mean > 0 and p < 1 - LEVEL:
        if paper is None:
            return Verdict("holds in direction", "above zero; the paper prints no number")
        if paired.mean >= least:
            return Verdict("holds", "above zero, and at least half of the paper's effect")
        return Verdict("holds in direction", "above zero, and its mean is less than half of the paper's effect")
    if high < least:
        half = "half of the paper's effect" if paper is not None else "zero"
        return Verdict("refuted", f"the interval lies below {half}")
    why = "the interval includes zero" if paper is None else "the interval excludes neither zero nor half of the effect"
    return _open(why if low <= 0 else f"above zero, {_BY_P}", paired, paired.mean, least - paired.mean, claims)


def one_sided(verdict: Verdict, *, larger: bool, smaller: bool) -> Verdict:
    """The verdict on differences that are bounds, from that on the bounds: open where the true ones could have another.

    ``larger``: whether some of the true differences may be larger.
    ``smaller``: whether some may be smaller.
    """
    if not (larger or smaller):
        return verdict
    if (larger and verdict.word == "refuted") or (smaller and verdict.word.startswith("holds")):
        return Verdict("open", f"{verdict.reason}, to which the runs that never reach the target may have helped")
    return Verdict(verdict.word, verdict.reason)


def judge_runs(values: Sequence[float], low: float, high: float, *, fresh: bool = True) -> Verdict:
    """Hold the values of runs, one each, against bounds that every run should keep.

    ``fresh``: whether the bound was asked before any of these runs had been seen.

    None outside: *holds*, of fresh runs with the share that may yet break it, at 95 %. One outside refutes it. Where
    seeds change no value, the runs are one observation, and no share follows from their number.
    """
    once = "; the values differ by rounding, so all runs are one observation" if one_value(values) else ""
    outside = [value for value in values if not low <= value <= high]
    if outside:
        worst = max(outside, key=lambda value: max(low - value, value - high))
        return Verdict("refuted", f"broken in {len(outside)} of {len(values)} runs, at worst with {worst:.4g}{once}")
    if once:
        return Verdict("holds", f"kept in all {len(values)} runs{once}")
    if not fresh:
        return Verdict("holds", f"kept in all {len(values)} runs")
    share = 1 - (1 - LEVEL) ** (1 / len(values))
    return Verdict("holds", f"kept in all {len(values)} runs, so at 95 % in more than {1 - share:.0%} of such runs")


def outside(paired: Paired, low: float, high: float) -> float:
    """The probability of a mean as far inside the bounds, were the true one on the nearer of them; 1 outside."""
    sides = [Paired.of([value - low for value in paired.differences])] if low > -math.inf else []
    sides += [Paired.of([high - value for value in paired.differences])] if high < math.inf else []
    return max(side.p if side.mean > 0 else 1.0 for side in sides)


def judge_mean(paired: Paired, p: float, low: float, high: float, claims: int = 1) -> Verdict:
    """Hold the mean of the values of runs against bounds.

    ``p``: that of :func:`outside`, corrected for the other claims of the table.
    ``claims``: how many it is corrected for.

    Significantly inside: *holds*. *Refuted* if the 95 % interval lies outside, and otherwise *open*.
    """
    if paired.interval is None:
        return Verdict("open", "one seed has no interval")
    if p < 1 - LEVEL:
        return Verdict("holds", "the mean lies within the bounds")
    if paired.interval[0] > high or paired.interval[1] < low:
        return Verdict("refuted", "the interval lies outside the bounds")
    inside = low <= paired.interval[0] and paired.interval[1] <= high
    why = f"the interval lies within the bounds, {_BY_P}" if inside else "the interval lies across a bound"
    within = min(high - paired.mean, paired.mean - low)
    return _open(why, paired, within, -within, claims)


def _open(why: str, paired: Paired, to_hold: float, to_refute: float, claims: int) -> Verdict:
    seeds = _deciding(paired, to_hold, to_refute, claims)
    return Verdict("open", why if seeds is not None else f"{why}, nor would {_MOST:,} seeds like these decide", seeds)


def _deciding(paired: Paired, to_hold: float, to_refute: float, claims: int) -> int | None:
    """The number of seeds whose interval would be narrower on each side than ``to_hold`` at the level of p, which is
    corrected for ``claims``, or than ``to_refute`` at that of the interval."""
    corrected = 1 - (1 - LEVEL) / claims

    def would(n: int) -> bool:
        error = paired.sd / math.sqrt(n)
        return quantile(corrected, n - 1) * error < to_hold or quantile(LEVEL, n - 1) * error < to_refute

    return next((n for n in range(len(paired.differences) + 1, _MOST + 1) if would(n)), None)
