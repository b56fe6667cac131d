"""The verdict on a paper's claim: from differences over seeds, or from values that a bound is on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from rondo.records.paired import LEVEL, Paired, one_value, quantile

Word = Literal["seen", "seen, smaller", "not seen here", "open", "not tested as stated", "counterexample"]
WORDS: tuple[Word, ...] = get_args(Word)

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


@dataclass(frozen=True)
class Odds:
    """The probabilities that decide a claim, each corrected for the other claims of its table.

    - ``seen``: of a mean as far on the claim's side, were the true one on its edge.
    - ``unseen``: of a mean as far on the other side of what the claim asks for, were the true one on the edge of that.
    """

    seen: float
    unseen: float


def least(paper: float | None) -> float:
    """The least difference that would still be the paper's claim: half of its effect, zero if it prints none."""
    return 0.0 if paper is None else paper / 2


def judge(paired: Paired, odds: Odds, paper: float | None, claims: int = 1) -> Verdict:
    """Hold differences against half of the paper's effect.

    ``odds``: ``seen`` is of :attr:`Paired.p`, ``unseen`` of :func:`beyond` the half.
    ``paper``: the paper's effect, above zero in the direction of its claim; None if it prints none, and then only the
    direction can be seen.
    ``claims``: how many the probabilities are corrected for.

    Significantly above zero and at least the half: *seen*. Above zero only: *seen, smaller*. Otherwise *not seen here*
    if significantly below the half (without a number: zero), and *open* if not.
    """
    if paired.interval is None:
        return Verdict("open", "one seed has no interval")
    if paired.mean > 0 and odds.seen < 1 - LEVEL:
        if paper is None:
            return Verdict("seen, smaller", "above zero; the paper prints no number")
        if paired.mean >= least(paper):
            return Verdict("seen", "above zero, and at least half of the paper's effect")
        return Verdict("seen, smaller", "above zero, and its mean is less than half of the paper's effect")
    half = "half of the paper's effect" if paper is not None else "zero"
    if odds.unseen < 1 - LEVEL:
        return Verdict("not seen here", f"below {half}, p = {odds.unseen:.2g}")
    low, high = paired.interval
    if low > 0 or high < least(paper):
        why = f"{'above zero' if low > 0 else f'below {half}'}, {_BY_P}"
    else:
        why = "the interval includes zero"
        why = why if paper is None else "the interval excludes neither zero nor half of the effect"
    return _open(why, paired, max(paired.mean, least(paper) - paired.mean), claims)


def one_sided(verdict: Verdict, *, larger: bool, smaller: bool) -> Verdict:
    """The verdict on differences that are bounds, from that on the bounds: open where the true ones could have another.

    ``larger``: whether some of the true differences may be larger.
    ``smaller``: whether some may be smaller.
    """
    if not (larger or smaller):
        return verdict
    if (larger and verdict.word == "not seen here") or (smaller and verdict.word.startswith("seen")):
        return Verdict("open", f"{verdict.reason}, to which the runs that never reach the target may have helped")
    return Verdict(verdict.word, verdict.reason)


def judge_runs(values: Sequence[float], low: float, high: float, *, fresh: bool = True, region: str = "") -> Verdict:
    """Hold the values of runs, one each, against bounds that every run should keep.

    ``fresh``: whether the bound was asked before any of these runs had been seen.
    ``region``: of a theorem inside its own conditions, where it does hold.

    None outside: *seen*, of fresh runs with the share that may yet break it, at 95 %. One outside is a *counterexample*
    to a theorem, and otherwise the bound is *not seen here*. Where seeds change no value, the runs are one observation,
    and no share follows from their number.
    """
    once = "; the values differ by rounding, so all runs are one observation" if one_value(values) else ""
    if broken := [value for value in values if not low <= value <= high]:
        worst = max(broken, key=lambda value: max(low - value, value - high))
        said = f"broken in {len(broken)} of {len(values)} runs, at worst with {worst:.4g}{once}"
        return Verdict("counterexample", f"{said}; {region}") if region else Verdict("not seen here", said)
    if once or not fresh:
        return Verdict("seen", f"kept in all {len(values)} runs{once}")
    share = 1 - (1 - LEVEL) ** (1 / len(values))
    return Verdict("seen", f"kept in all {len(values)} runs, so at 95 % in more than {1 - share:.0%} of such runs")


def outside(paired: Paired, low: float, high: float) -> float:
    """The probability of a mean as far inside the bounds, were the true one on the nearer of them; 1 outside."""
    return max(side.p if side.mean > 0 else 1.0 for side in _sides(paired, low, high))


def beyond(paired: Paired, low: float, high: float = math.inf) -> float:
    """The probability of a mean as far outside the bounds, were the true one on the one that it breaks; 1 inside."""
    return min(side.p if side.mean < 0 else 1.0 for side in _sides(paired, low, high))


def _sides(paired: Paired, low: float, high: float) -> list[Paired]:
    """The differences as distances from each bound that there is, inwards."""
    sides = [Paired.of([value - low for value in paired.differences])] if low > -math.inf else []
    return [*sides, Paired.of([high - value for value in paired.differences])] if high < math.inf else sides


def judge_mean(paired: Paired, odds: Odds, low: float, high: float, claims: int = 1) -> Verdict:
    """Hold the mean of the values of runs against bounds.

    ``odds``: those of :func:`outside` and :func:`beyond`.
    ``claims``: how many they are corrected for.

    Significantly inside: *seen*. *Not seen here* if significantly outside, and otherwise *open*.
    """
    if paired.interval is None:
        return Verdict("open", "one seed has no interval")
    if odds.seen < 1 - LEVEL:
        return Verdict("seen", "the mean lies within the bounds")
    if odds.unseen < 1 - LEVEL:
        return Verdict("not seen here", f"the mean lies outside the bounds, p = {odds.unseen:.2g}")
    inside = low <= paired.interval[0] and paired.interval[1] <= high
    out = paired.interval[0] > high or paired.interval[1] < low
    why = f"the interval lies {'within' if inside else 'outside'} the bounds, {_BY_P}"
    why = why if inside or out else "the interval lies across a bound"
    return _open(why, paired, abs(min(high - paired.mean, paired.mean - low)), claims)


def at_both_rates(own: Verdict, common: Verdict) -> Verdict:
    """The verdict on two forms of one method, from that at each one's own rate and that at a common one."""
    if own.word == common.word:
        return own
    return Verdict("open", f"it turns with the rate: {own.word} at each one's own, {common.word} at a common one")


def _open(why: str, paired: Paired, distance: float, claims: int) -> Verdict:
    seeds = _deciding(paired, distance, claims)
    return Verdict("open", why if seeds is not None else f"{why}, nor would {_MOST:,} seeds like these decide", seeds)


def _deciding(paired: Paired, distance: float, claims: int) -> int | None:
    """The number of seeds whose interval would be narrower on each side than ``distance``, at the level of p corrected
    for ``claims``."""
    corrected = 1 - (1 - LEVEL) / claims

    def would(n: int) -> bool:
        return quantile(corrected, n - 1) * paired.sd / math.sqrt(n) < distance

    return next((n for n in range(len(paired.differences) + 1, _MOST + 1) if would(n)), None)
