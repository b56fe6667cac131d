"""Findings: each claim of an entry with its differences and verdicts, from the runs that are there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rondo.reproduce.entry import Contrast
from rondo.reproduce.paired import Paired, holm
from rondo.reproduce.trials import Trials
from rondo.reproduce.verdict import Verdict, judge
from rondo.tune.trial import Curve, Trial

Key = tuple[str, int]
"""A run's arm and seed."""


@dataclass(frozen=True)
class Decided:
    """Differences by seed, with their verdict. ``p`` is corrected for the other claims of the entry."""

    paired: Paired
    p: float
    verdict: Verdict


@dataclass(frozen=True)
class Finding(Decided):
    """A claim with its differences at equal rounds. ``equal_bytes``: the same where every run of the claim has sent no
    more than the least of them in all; None without a score by then."""

    contrast: Contrast
    equal_bytes: Decided | None


def findings(trials: Trials) -> list[Finding]:
    """The findings of the seeds whose runs are all there; none if there is no such seed."""
    entry = trials.entry
    runs = {(trial.arm, trial.seed): trial for trial in finished(trials)}
    curves = {key: trials.curve(trial) for key, trial in runs.items()}
    seeds = [seed for seed in entry.seeds if all((arm, seed) in runs for arm in entry.arms)]
    if not seeds:
        return []
    stopped = {key for key, trial in runs.items() if trials.has_stopped(trial)}
    at_rounds = _decided(entry.contrasts, seeds, lambda _, key: curves[key].score(entry.last))
    at_bytes = _decided(
        entry.contrasts,
        seeds,
        lambda keys, key: curves[key].until(bytes=_least_bytes(keys, curves, stopped)).score(entry.last),
    )
    return [
        Finding(of_rounds.paired, of_rounds.p, of_rounds.verdict, contrast, of_bytes)
        for contrast, of_rounds, of_bytes in zip(entry.contrasts, at_rounds, at_bytes, strict=True)
        if of_rounds is not None
    ]


def finished(trials: Trials) -> list[Trial]:
    """The runs that count and are done."""
    if trials.missing_of_tuning():
        return []
    return [trial for trial in trials.runs() if trials.done(trial)]


def _decided(
    contrasts: Sequence[Contrast], seeds: Sequence[int], score: Callable[[Sequence[Key], Key], float | None]
) -> list[Decided | None]:
    """The verdict on each claim, p corrected for all of them. ``score`` gives that of a run, given all runs of its
    claim and seed; a claim with a run that has none is None."""
    differences = [_differences(contrast, seeds, score) for contrast in contrasts]
    paired = [None if values is None else Paired.of(values) for values in differences]
    corrected = iter(holm([of_seeds.p for of_seeds in paired if of_seeds is not None]))
    return [
        None if of_seeds is None else Decided(of_seeds, p := next(corrected), judge(of_seeds, p, contrast.paper))
        for contrast, of_seeds in zip(contrasts, paired, strict=True)
    ]


def _differences(
    contrast: Contrast, seeds: Sequence[int], score: Callable[[Sequence[Key], Key], float | None]
) -> list[float] | None:
    differences = []
    for seed in seeds:
        keys = [(arm, seed) for arm in (*contrast.plus, *contrast.minus)]
        scores = [score(keys, key) for key in keys]
        signs = [1] * len(contrast.plus) + [-1] * len(contrast.minus)
        signed = [sign * value for sign, value in zip(signs, scores, strict=True) if value is not None]
        if len(signed) < len(keys):
            return None
        differences.append(sum(signed))
    return differences


def _least_bytes(keys: Sequence[Key], curves: Mapping[Key, Curve], stopped: set[Key]) -> int:
    """The bytes of the run that sent least. One that could not finish does not cut the others short."""
    counting = [key for key in keys if key not in stopped] or keys
    return min(curves[key].bytes[-1] for key in counting)
