"""Findings: each claim of an entry with its differences and verdict, from the runs that are there."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rondo.reproduce.entry import Contrast
from rondo.reproduce.paired import Paired, holm
from rondo.reproduce.trials import Curve, Trial, Trials
from rondo.reproduce.verdict import Verdict, judge


@dataclass(frozen=True)
class Finding:
    """A claim with its differences. ``p`` is corrected for the other claims of the entry. ``equal_bytes``: the mean
    difference where every run of the claim has sent no more than the least of them; None without a score by then."""

    contrast: Contrast
    paired: Paired
    p: float
    equal_bytes: float | None
    verdict: Verdict


def findings(trials: Trials) -> list[Finding]:
    """The findings of the seeds whose runs are all there; none if there is no such seed."""
    entry, scores, curves = trials.entry, dict[tuple[str, int], float](), dict[tuple[str, int], Curve]()
    for trial in finished(trials):
        scores[trial.arm, trial.seed] = trials.score(trial)
        curves[trial.arm, trial.seed] = trials.curve(trial)
    seeds = [seed for seed in entry.seeds if all((arm, seed) in scores for arm in entry.arms)]
    if not seeds:
        return []
    paired = [Paired.of([_difference(c, scores, seed) for seed in seeds]) for c in entry.contrasts]
    corrected = holm([p.p for p in paired])
    return [
        Finding(contrast, of_seeds, p, _at_equal_bytes(contrast, curves, seeds), judge(of_seeds, p, contrast.paper))
        for contrast, of_seeds, p in zip(entry.contrasts, paired, corrected, strict=True)
    ]


def finished(trials: Trials) -> list[Trial]:
    """The runs that count and are done."""
    missing = trials.missing()
    if missing and missing[0].is_tuning:
        return []
    left = {trial.folder for trial in missing}
    return [trial for trial in trials.runs() if trial.folder not in left]


def _difference(contrast: Contrast, scores: Mapping[tuple[str, int], float], seed: int) -> float:
    return sum(scores[arm, seed] for arm in contrast.plus) - sum(scores[arm, seed] for arm in contrast.minus)


def _at_equal_bytes(contrast: Contrast, curves: Mapping[tuple[str, int], Curve], seeds: Sequence[int]) -> float | None:
    differences = []
    for seed in seeds:
        of_seed = {arm: curves[arm, seed] for arm in (*contrast.plus, *contrast.minus)}
        least = min(curve.bytes[-1] for curve in of_seed.values())
        scores = {(arm, seed): curve.at_bytes(least) for arm, curve in of_seed.items()}
        present = {key: score for key, score in scores.items() if score is not None}
        if len(present) < len(scores):
            return None
        differences.append(_difference(contrast, present, seed))
    return statistics.fmean(differences)
