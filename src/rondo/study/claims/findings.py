"""Findings: each claim of an entry with its numbers and verdicts, from the runs that are there."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rondo.errors import ConfigError
from rondo.records.curve import Curve
from rondo.records.paired import ROUNDING, Paired, holm
from rondo.study.claims.entry import Bound, Contrast, Entry, Precondition
from rondo.study.claims.trials import Trials
from rondo.study.claims.verdict import (
    Odds,
    Verdict,
    at_both_rates,
    beyond,
    judge,
    judge_mean,
    judge_runs,
    least,
    one_sided,
    outside,
)
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
    - ``common``: a contrast's differences at a common rate, where it has one.
    """

    paired: Paired
    p: float | None
    verdict: Verdict
    common: Paired | None


@dataclass(frozen=True)
class Presupposed:
    """A precondition with what the runs have of it: the mean of differences, or the largest change at the end of its
    curves; None where nothing tells."""

    of: Precondition
    here: float | None


@dataclass(frozen=True)
class Finding(Decided):
    """A claim with its numbers at the end of each run.

    - ``rounds``: after how many the runs of each of its arms end (:func:`ended`).
    - ``equal_bytes``: a contrast's where no client of the claim's runs has, in the mean over a run's clients, sent and
      received more than those of the most frugal run do in all; None without a value by then, where bytes are a
      secret, of a bound, of a claim on bytes, and of one on rounds alone.
    - ``unreached``: of a contrast with a target, the number of runs that never reach it, for each arm that has any.
    - ``presupposed``: its preconditions.
    """

    of: Contrast | Bound
    rounds: Mapping[str, str]
    equal_bytes: Decided | None
    unreached: Mapping[str, int]
    presupposed: Sequence[Presupposed]


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
    asked = [*entry.claims, *entry.commons]
    at_end = _decided(trials, asked, [Paired.of(_numbers(claim, entry, curves, seeds)) for claim in asked])
    at_bytes = _decided(trials, asked, [_at_equal_bytes(claim, entry, curves, seeds, stopped) for claim in asked])
    measured = [Presupposed(one, _measured(one, entry, curves, seeds)) for one in entry.preconditions]
    found = []
    for claim, of_end, of_bytes in zip(entry.claims, at_end, at_bytes, strict=True):
        assert of_end is not None
        never, ends = _unreached(claim, entry, curves, seeds), {arm: rounds[arm] for arm in claim.arms}
        if isinstance(claim, Contrast):
            larger, smaller = (not never.keys().isdisjoint(arms) for arms in (claim.plus, claim.minus))
            of_end = replace(of_end, verdict=one_sided(of_end.verdict, larger=larger, smaller=smaller))
        presupposed = [one for one in measured if claim.claim in (one.of.claims or [claim.claim])]
        if untested := _untested(claim, presupposed):
            of_end = replace(of_end, verdict=untested)
            of_bytes = of_bytes and replace(of_bytes, verdict=untested)
        found.append(
            Finding(
                **vars(of_end), of=claim, rounds=ends, equal_bytes=of_bytes, unreached=never, presupposed=presupposed
            )
        )
    return found


def _measured(one: Precondition, entry: Entry, curves: _Curves, seeds: Sequence[int]) -> float | None:
    score = entry.score
    if one.plus:
        scores = {key: score.of_values(curve.values) for key, curve in curves.items()}
        return statistics.fmean(_difference(one, scores, seed) for seed in seeds)
    changes = [[score.late_change(curves[arm, seed]) for seed in seeds] for arm in one.flat]
    told = [[change for change in of_arm if change is not None] for of_arm in changes]
    return max(abs(statistics.fmean(of_arm)) for of_arm in told) if all(told) else None


def _untested(claim: Contrast | Bound, presupposed: Sequence[Presupposed]) -> Verdict | None:
    """Why a claim is not tested as stated, as a verdict; None if it is."""
    lacking = [f"precondition not met: {one.of.says}" for one in presupposed if not one.of.is_met(one.here)]
    why = [claim.untested, *lacking] if claim.untested else lacking
    return Verdict("not tested as stated", "; ".join(why)) if why else None


def ended(curves: Iterable[Curve]) -> str:
    """The rounds after which an arm's runs have their last values: ``"30"``, or ``"12 to 30"`` where one stopped."""
    rounds = sorted({curve.rounds[-1] for curve in curves})
    return " to ".join(map(str, dict.fromkeys((rounds[0], rounds[-1]))))


def finished(trials: Trials) -> list[Trial]:
    """The runs that count and are done."""
    if trials.missing_of_tuning():
        return []
    return [trial for trial in trials.runs() if trials.done(trial)]


def _decided(
    trials: Trials, asked: Sequence[Contrast | Bound], numbers: Sequence[Paired | None]
) -> list[Decided | None]:
    """The verdict on each claim, its probabilities corrected for all of them; None of a claim without numbers.
    ``asked``: the claims of the entry, and behind them those that have a common rate, at it."""
    entry = trials.entry
    odds = [o for claim, paired in zip(asked, numbers, strict=True) if paired and (o := _odds(claim, paired, entry))]
    sides = holm([o.seen for o in odds]), holm([o.unseen for o in odds])
    corrected = iter([Odds(*pair) for pair in zip(*sides, strict=True)])
    decided = list[Decided | None]()
    for claim, paired in zip(asked, numbers, strict=True):
        if paired is None:
            decided.append(None)
            continue
        of_all = next(corrected) if _odds(claim, paired, entry) else None
        verdict = _verdict(claim, paired, of_all, len(odds), entry)
        if alike := [arm for arm in claim.arms if trials.is_untold(arm)]:
            verdict = Verdict("open", f"all trials of {', '.join(alike)} score alike, so nothing chose its values")
        decided.append(Decided(paired, None if of_all is None else of_all.seen, verdict, None))
    own, common = decided[: len(entry.claims)], iter(decided[len(entry.claims) :])
    return [_of_forms(claim, one, common, trials) for claim, one in zip(entry.claims, own, strict=True)]


def _of_forms(
    claim: Contrast | Bound, own: Decided | None, common: Iterator[Decided | None], trials: Trials
) -> Decided | None:
    """The verdict on arms at one rate: it may not turn with the rate."""
    if not isinstance(claim, Contrast):
        return own
    other = next(common) if claim.common is not None else None
    if own is None or not claim.one_rate:
        return own
    if other is not None:
        return replace(own, verdict=at_both_rates(own.verdict, other.verdict), common=other.paired)
    points = {arm: trials.tuned(arm) for arm in claim.arms}
    if all(point == points[claim.arms[0]] for point in points.values()):
        return own
    return replace(own, verdict=Verdict("open", "its arms have rates of their own, and none ran at a common one"))


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


def _difference(contrast: Contrast | Precondition, scores: Mapping[_Key, float], seed: int) -> float:
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


def _odds(claim: Contrast | Bound, paired: Paired, entry: Entry) -> Odds | None:
    """The probabilities of a claim by itself; None of a bound on every run, which has none."""
    if isinstance(claim, Contrast):
        return Odds(paired.p, beyond(paired, least(claim.paper)))
    limits = _limits(claim, entry)
    return Odds(outside(paired, *limits), beyond(paired, *limits)) if claim.of == "mean" else None


def _verdict(claim: Contrast | Bound, paired: Paired, odds: Odds | None, claims: int, entry: Entry) -> Verdict:
    if isinstance(claim, Contrast):
        assert odds is not None
        return judge(paired, odds, claim.paper, claims)
    if odds is not None:
        return judge_mean(paired, odds, *_limits(claim, entry), claims)
    return judge_runs(paired.differences, *_limits(claim, entry), fresh=not entry.changed, region=claim.region)


def _limits(bound: Bound, entry: Entry) -> tuple[float, float]:
    """The least and the largest number that keep a bound, in the unit of its numbers."""
    if bound.factor is not None:
        return -math.inf, bound.factor
    scaled = entry.score.scaled if bound.of == "mean" else float
    low = -math.inf if bound.at_least is None else scaled(bound.at_least)
    return low, math.inf if bound.at_most is None else scaled(bound.at_most)
