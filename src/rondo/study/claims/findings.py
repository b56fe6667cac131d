"""Findings: each claim of an entry with its numbers and verdicts, from the runs that are there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from rondo.errors import ConfigError
from rondo.records.curve import Curve
from rondo.study.claims.entry import Bound, Contrast, Entry
from rondo.study.claims.paired import ROUNDING, Paired, holm
from rondo.study.claims.trials import Trials
from rondo.study.claims.verdict import Verdict, judge, judge_mean, judge_runs, one_sided, outside
from rondo.study.runs import Trial

_Key = tuple[str, int]
"""A run's arm and seed."""
_Curves = Mapping[_Key, Curve]


@dataclass(frozen=True)
class Decided:
    """The numbers of a claim with their verdict.

    - ``paired``: a contrast's differences by seed; of a bound on a mean, its scores by seed; of one on every run, the
      same in the unit of the metric, or the largest factors.
    - ``p``: corrected for the other claims of the entry; None of a bound on every run, which has none.
    """

    paired: Paired
    p: float | None
    verdict: Verdict


@dataclass(frozen=True)
class Finding(Decided):
    """A claim with its numbers at the end of each run.

    - ``rounds``: after how many the runs of each of its arms end (:func:`ended`).
    - ``equal_bytes``: a contrast's where no client of the claim's runs has, in the mean over a run's clients, sent and
      received more than those of the most frugal run do in all; None without a value by then, where bytes are a
      secret, of a bound, of a claim on bytes, and of one on rounds alone.
    - ``unreached``: of a contrast with a target, the number of runs that never reach it, for each arm that has any.
    """

    of: Contrast | Bound
    rounds: Mapping[str, str]
    equal_bytes: Decided | None
    unreached: Mapping[str, int]


def findings(trials: Trials) -> list[Finding]:
    """The findings of the seeds whose runs are all there; none if there is no such seed."""
    entry = trials.entry
    runs = {(trial.arm, trial.seed): trial for trial in finished(trials)}
    curves = {key: trials.curve(trial) for key, trial in runs.items()}
    seeds = [seed for seed in entry.seeds if all((arm, seed) in runs for arm in entry.arms)]
    if not seeds:
        return []
    rounds = {arm: ended(curves[arm, seed] for seed in seeds) for arm in entry.arms}
    stopped = {key for key, trial in runs.items() if trials.has_stopped(trial)}
    untold = {arm for arm in entry.arms if trials.is_untold(arm)}
    at_end = _decided(entry, [Paired.of(_numbers(claim, entry, curves, seeds)) for claim in entry.claims], untold)
    by_bytes = [_at_equal_bytes(claim, entry, curves, seeds, stopped) for claim in entry.claims]
    at_bytes = _decided(entry, by_bytes, untold)
    found = []
    for claim, of_end, of_bytes in zip(entry.claims, at_end, at_bytes, strict=True):
        assert of_end is not None
        never, verdict = _unreached(claim, entry, curves, seeds), of_end.verdict
        if isinstance(claim, Contrast):
            larger, smaller = (not never.keys().isdisjoint(arms) for arms in (claim.plus, claim.minus))
            verdict = one_sided(verdict, larger=larger, smaller=smaller)
        ends = {arm: rounds[arm] for arm in claim.arms}
        found.append(Finding(of_end.paired, of_end.p, verdict, claim, ends, of_bytes, never))
    return found


def ended(curves: Iterable[Curve]) -> str:
    """The rounds after which an arm's runs have their last values: ``"30"``, or ``"12 to 30"`` where one stopped."""
    rounds = sorted({curve.rounds[-1] for curve in curves})
    return " to ".join(map(str, dict.fromkeys((rounds[0], rounds[-1]))))


def finished(trials: Trials) -> list[Trial]:
    """The runs that count and are done."""
    if trials.missing_of_tuning():
        return []
    return [trial for trial in trials.runs() if trials.done(trial)]


def _decided(entry: Entry, numbers: Sequence[Paired | None], untold: Set[str]) -> list[Decided | None]:
    """The verdict on each claim, p corrected for all of them; None of a claim without numbers. ``untold``: arms whose
    values their tuning did not tell apart."""
    p = [None if n is None else _probability(claim, n, entry) for claim, n in zip(entry.claims, numbers, strict=True)]
    corrected = holm([one for one in p if one is not None])
    claims, left = len(corrected), iter(corrected)
    decided = list[Decided | None]()
    for claim, paired, one in zip(entry.claims, numbers, p, strict=True):
        of_all = None if one is None else next(left)
        if paired is None:
            decided.append(None)
        else:
            verdict = _verdict(claim, paired, of_all, claims, entry)
            if alike := [arm for arm in claim.arms if arm in untold]:
                verdict = Verdict("open", f"all trials of {', '.join(alike)} score alike, so nothing chose its values")
            decided.append(Decided(paired, of_all, verdict))
    return decided


def _numbers(claim: Contrast | Bound, entry: Entry, curves: _Curves, seeds: Sequence[int]) -> list[float]:
    score = entry.score
    if isinstance(claim, Contrast) and claim.target is not None:
        logs = {(arm, s): _log_bytes(arm, claim.target, entry, curves[arm, s]) for arm in claim.arms for s in seeds}
        return [_difference(claim, logs, seed) for seed in seeds]
    scores = {key: score.of_values(curve.values) for key, curve in curves.items()}
    if isinstance(claim, Contrast):
        return [_difference(claim, scores, seed) for seed in seeds]
    if claim.factor is not None:
        return [curves[claim.arm, seed].largest_factor() for seed in seeds]
    numbers = [_less(scores[claim.arm, seed], scores[claim.less, seed] if claim.less else 0.0) for seed in seeds]
    return numbers if claim.of == "mean" else [score.unscaled(number) for number in numbers]


def _log_bytes(arm: str, target: float, entry: Entry, curve: Curve) -> float:
    """The decimal logarithm of the bytes per client to the target, or of all of them. Raises :class:`ConfigError`."""
    where, leave = "contrasts.target", "leave it out of claims with a target"
    if curve.bytes is None:
        message = f"{arm}: bytes would tell how many clients took part in a round, which is a secret: {leave}"
        raise ConfigError.at(where, message)
    sent = curve.bytes_to(target, lower_is_better=entry.lower_is_better)
    sent = curve.bytes[-1] if sent is None else sent
    if sent == 0:
        raise ConfigError.at(where, f"{arm} sends no byte by then, and zero has no logarithm: {leave}")
    return math.log10(sent)


def _unreached(claim: Contrast | Bound, entry: Entry, curves: _Curves, seeds: Sequence[int]) -> dict[str, int]:
    if isinstance(claim, Bound) or (target := claim.target) is None:
        return {}
    lower = entry.lower_is_better
    counts = {
        arm: [curves[arm, s].bytes_to(target, lower_is_better=lower) for s in seeds].count(None) for arm in claim.arms
    }
    return {arm: count for arm, count in counts.items() if count}


def _difference(contrast: Contrast, scores: Mapping[_Key, float], seed: int) -> float:
    return _less(*(math.fsum(scores[arm, seed] for arm in arms) for arms in (contrast.plus, contrast.minus)))


def _less(one: float, other: float) -> float:
    """Their difference; 0 where it is rounding."""
    return 0.0 if math.isclose(one, other, rel_tol=ROUNDING) else one - other


def _at_equal_bytes(
    claim: Contrast | Bound, entry: Entry, curves: _Curves, seeds: Sequence[int], stopped: set[_Key]
) -> Paired | None:
    if isinstance(claim, Bound) or claim.target is not None or claim.rounds_alone:
        return None
    differences = []
    for seed in seeds:
        keys = [(arm, seed) for arm in claim.arms]
        sent = {key: own[-1] for key in keys if (own := curves[key].bytes) is not None}
        if len(sent) < len(keys):
            return None
        # A run that could not finish does not cut the others short.
        least = min(sent[key] for key in ([key for key in keys if key not in stopped] or keys))
        values = {key: curves[key].until(bytes=least).values for key in keys}
        if not all(values.values()):
            return None
        scores = {key: entry.score.of_values(until) for key, until in values.items()}
        differences.append(_difference(claim, scores, seed))
    return Paired.of(differences)


def _probability(claim: Contrast | Bound, paired: Paired, entry: Entry) -> float | None:
    if isinstance(claim, Contrast):
        return paired.p
    return outside(paired, *_limits(claim, entry)) if claim.of == "mean" else None


def _verdict(claim: Contrast | Bound, paired: Paired, p: float | None, claims: int, entry: Entry) -> Verdict:
    if isinstance(claim, Contrast):
        assert p is not None
        return judge(paired, p, claim.paper, claims)
    if p is not None:
        return judge_mean(paired, p, *_limits(claim, entry), claims)
    return judge_runs(paired.differences, *_limits(claim, entry), fresh=not entry.changed)


def _limits(bound: Bound, entry: Entry) -> tuple[float, float]:
    """The least and the largest number that keep a bound, in the unit of its numbers."""
    if bound.factor is not None:
        return -math.inf, bound.factor
    scaled = entry.score.scaled if bound.of == "mean" else float
    low = -math.inf if bound.at_least is None else scaled(bound.at_least)
    return low, math.inf if bound.at_most is None else scaled(bound.at_most)
