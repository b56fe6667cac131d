"""Findings: each claim of an entry with its numbers and verdict, from the runs that are there."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rondo.reproduce.entry import Bound, Contrast
from rondo.reproduce.paired import Paired, holm
from rondo.reproduce.trials import Curve, Trial, Trials
from rondo.reproduce.verdict import Verdict, judge, judge_mean, judge_runs, outside


@dataclass(frozen=True)
class Finding:
    """A claim with its numbers.

    - ``paired``: a contrast's differences by seed; of a bound on a mean, its scores by seed; of one on every run, the
      same in the unit of the metric, or the largest factors.
    - ``p``: corrected for the other claims of the entry; None of a bound on every run, which has none.
    - ``equal_bytes``: the mean difference where every run of the claim has sent no more than the least of them; None
      without a score by then, and of a bound.
    """

    of: Contrast | Bound
    paired: Paired
    p: float | None
    equal_bytes: float | None
    verdict: Verdict


def findings(trials: Trials) -> list[Finding]:
    """The findings of the seeds whose runs are all there; none if there is no such seed."""
    entry, curves = trials.entry, {(t.arm, t.seed): trials.curve(t) for t in finished(trials)}
    seeds = [seed for seed in entry.seeds if all((arm, seed) in curves for arm in entry.arms)]
    if not seeds:
        return []
    numbers = [Paired.of(_numbers(claim, trials, curves, seeds)) for claim in entry.claims]
    p = [_probability(c, paired, trials) for c, paired in zip(entry.claims, numbers, strict=True)]
    corrected = iter(holm([one for one in p if one is not None]))
    return [
        _finding(claim, paired, None if one is None else next(corrected), trials, curves, seeds)
        for claim, paired, one in zip(entry.claims, numbers, p, strict=True)
    ]


def finished(trials: Trials) -> list[Trial]:
    """The runs that count and are done."""
    missing = trials.missing()
    if missing and missing[0].is_tuning:
        return []
    left = {trial.folder for trial in missing}
    return [trial for trial in trials.runs() if trial.folder not in left]


_Curves = Mapping[tuple[str, int], Curve]


def _numbers(claim: Contrast | Bound, trials: Trials, curves: _Curves, seeds: Sequence[int]) -> list[float]:
    if isinstance(claim, Contrast):
        scores = {key: trials.score_of(curve.values) for key, curve in curves.items()}
        return [_difference(claim, scores, seed) for seed in seeds]
    if claim.factor is not None:
        return [curves[claim.arm, seed].largest_factor() for seed in seeds]
    scores = [trials.score_of(curves[claim.arm, seed].values) for seed in seeds]
    if claim.less is not None:
        others = [trials.score_of(curves[claim.less, seed].values) for seed in seeds]
        scores = [score - other for score, other in zip(scores, others, strict=True)]
    return scores if claim.of == "mean" else [trials.unscaled(score) for score in scores]


def _probability(claim: Contrast | Bound, paired: Paired, trials: Trials) -> float | None:
    if isinstance(claim, Contrast):
        return paired.p
    return outside(paired, *_limits(claim, trials)) if claim.of == "mean" else None


def _finding(
    claim: Contrast | Bound, paired: Paired, p: float | None, trials: Trials, curves: _Curves, seeds: Sequence[int]
) -> Finding:
    if isinstance(claim, Contrast):
        assert p is not None
        equal_bytes = _at_equal_bytes(claim, trials, curves, seeds)
        return Finding(claim, paired, p, equal_bytes, judge(paired, p, claim.paper))
    if p is not None:
        return Finding(claim, paired, p, None, judge_mean(paired, p, *_limits(claim, trials)))
    return Finding(claim, paired, None, None, judge_runs(paired.differences, *_limits(claim, trials)))


def _limits(bound: Bound, trials: Trials) -> tuple[float, float]:
    """The least and the largest number that keep a bound, in the unit of its numbers."""
    if bound.factor is not None:
        return -math.inf, bound.factor
    scaled = trials.scaled if bound.of == "mean" else float
    low = -math.inf if bound.at_least is None else scaled(bound.at_least)
    return low, math.inf if bound.at_most is None else scaled(bound.at_most)


def _difference(contrast: Contrast, scores: Mapping[tuple[str, int], float], seed: int) -> float:
    return sum(scores[arm, seed] for arm in contrast.plus) - sum(scores[arm, seed] for arm in contrast.minus)


def _at_equal_bytes(contrast: Contrast, trials: Trials, curves: _Curves, seeds: Sequence[int]) -> float | None:
    differences = []
    for seed in seeds:
        of_seed = {arm: curves[arm, seed] for arm in (*contrast.plus, *contrast.minus)}
        least = min(curve.bytes[-1] for curve in of_seed.values())
        values = {(arm, seed): curve.until(least) for arm, curve in of_seed.items()}
        if not all(values.values()):
            return None
        scores = {key: trials.score_of(until) for key, until in values.items()}
        differences.append(_difference(contrast, scores, seed))
    return statistics.fmean(differences)
