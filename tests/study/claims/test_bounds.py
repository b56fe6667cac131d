"""Claims that are numbers: bounds on every run, on means, and on the way from one value to the next."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rondo.cli import app
from rondo.errors import ConfigError
from rondo.records.curve import Curve
from rondo.records.paired import Paired
from rondo.study.claims import entry as entries
from rondo.study.claims.findings import findings
from rondo.study.claims.trials import Trials
from rondo.study.claims.verdict import Odds, Verdict, beyond, judge_mean, judge_runs, outside
from small_entries import ENTRY, LINEAR, TRAIN, decided, page, written

BOUND: dict[str, Any] = {"claim": "it is near", "arm": "alternating", "source": "Lemma 0"}


@pytest.mark.parametrize(
    ("values", "low", "high", "word", "reason"),
    [
        ([0.1, 0.2, 0.3], -math.inf, 0.3, "seen", "kept in all 3 runs, so at 95 % in more than 37% of such runs"),
        (
            [0.2, 0.2 + 1e-15, 0.2],
            -math.inf,
            0.3,
            "seen",
            "kept in all 3 runs; the values differ by rounding, so all runs are one observation",
        ),
        (
            [0.4, 0.4],
            -math.inf,
            0.3,
            "not seen here",
            "broken in 2 of 2 runs, at worst with 0.4; the values differ by rounding, so all runs are one observation",
        ),
        ([0.2], -math.inf, 0.3, "seen", "kept in all 1 runs, so at 95 % in more than 5% of such runs"),
        ([0.1, 0.2, 0.31], -math.inf, 0.3, "not seen here", "broken in 1 of 3 runs, at worst with 0.31"),
        ([0.1, -0.5, 0.31], 0.0, 0.3, "not seen here", "broken in 2 of 3 runs, at worst with -0.5"),
        ([0.1, math.nan], -math.inf, 0.3, "not seen here", "broken in 1 of 2 runs, at worst with nan"),
    ],
)
def test_bound_on_every_run(values: list[float], low: float, high: float, word: str, reason: str) -> None:
    verdict = judge_runs(values, low, high)
    assert (verdict.word, verdict.reason) == (word, reason)


def test_theorem_inside_its_own_conditions_has_a_counterexample_with_the_region_where_it_holds() -> None:
    verdict = judge_runs([0.2, 0.4], -math.inf, 0.3, region="it holds up to a step of 1")
    why = "broken in 1 of 2 runs, at worst with 0.4; it holds up to a step of 1"
    assert (verdict.word, verdict.reason) == ("counterexample", why)
    assert judge_runs([0.2, 0.3], -math.inf, 0.3, region="it holds up to a step of 1").word == "seen"


def mean_judged(paired: Paired, low: float, high: float, claims: int = 1) -> Verdict:
    """The verdict with the other ``claims`` of its table alike."""
    odds = (outside(paired, low, high), beyond(paired, low, high))
    return judge_mean(paired, Odds(*(min(1.0, claims * one) for one in odds)), low, high, claims)


def test_runs_that_had_been_seen_tell_no_share() -> None:
    """A share at 95 % is of runs that nobody chose by their outcome."""
    assert judge_runs([0.1, 0.2, 0.3], -math.inf, 0.3, fresh=False).reason == "kept in all 3 runs"


@pytest.mark.parametrize(
    ("values", "low", "high", "word"),
    [
        ([0.50, 0.52, 0.49, 0.51], 0.4, 0.6, "seen"),
        ([0.50, 0.52, 0.49, 0.51], -math.inf, 0.6, "seen"),
        ([0.50, 0.52, 0.49, 0.51], 0.4, math.inf, "seen"),
        ([0.50, 0.52, 0.49, 0.51], 0.503, 0.6, "open"),
        ([0.50, 0.52, 0.49, 0.51], 0.51, 0.6, "open"),
        ([0.50, 0.52, 0.49, 0.51], 0.6, 0.7, "not seen here"),
        ([0.50, 0.52, 0.49, 0.51], -math.inf, 0.4, "not seen here"),
        ([0.5], 0.4, 0.6, "open"),
    ],
)
def test_bound_on_a_mean(values: list[float], low: float, high: float, word: str) -> None:
    paired = Paired.of(values)
    verdict = mean_judged(paired, low, high)
    assert verdict.word == word
    if word == "open" and len(values) > 1:
        assert verdict.seeds is not None
        assert verdict.seeds > len(values)


def test_mean_within_its_bounds_may_be_open_by_the_corrected_probability() -> None:
    paired = Paired.of([0.50, 0.55, 0.45, 0.51])
    assert mean_judged(paired, 0.4, math.inf).word == "seen"
    verdict = mean_judged(paired, 0.4, math.inf, 9)
    why = "the interval lies within the bounds, but p, corrected for the other claims, is not below 0.05"
    assert (verdict.word, verdict.reason) == ("open", why)
    assert mean_judged(paired, 0.6, math.inf).word == "not seen here"
    assert mean_judged(paired, 0.6, math.inf, 99).reason == why.replace("within", "outside")


def test_probability_of_a_bound_is_that_of_its_nearer_end() -> None:
    paired = Paired.of([0.50, 0.52, 0.49, 0.51])
    near = Paired.of([0.05, 0.03, 0.06, 0.04])
    assert outside(paired, 0.0, 0.55) == pytest.approx(near.p)
    assert outside(paired, 0.6, 0.7) == 1.0


def test_largest_factor_asks_nothing_of_rounding() -> None:
    assert Curve([0, 1, 2], [0, 0, 0], [1.0, 0.5, 0.4]).largest_factor() == pytest.approx(0.8)
    assert Curve([0, 1, 2], [0, 0, 0], [1.0, 1e-14, 1e-13]).largest_factor() == pytest.approx(1e-14)
    assert Curve([1], [0], [1.0]).largest_factor() == 0


@pytest.mark.slow
def test_bounds_come_to_their_verdicts(tmp_path: Path) -> None:
    """Iterations of two rounds, the first from the run's start: with inputs that are isotropic every angle is known."""
    problem = {**LINEAR["problem"], "design": "isotropic"}
    bounds = [
        {**BOUND, "source": "|b| of Lemma 0", "factor": 0.95},
        {**BOUND, "claim": "each third", "factor": 0.33},
        {**BOUND, "claim": "frozen", "arm": "frozen", "at_least": 0.8999, "at_most": 0.9001},
        {**BOUND, "claim": "in the mean", "at_most": 0.5, "of": "mean"},
        {**BOUND, "claim": "a third", "arm": "frozen", "less": "alternating", "at_least": 2.0, "at_most": 3.0},
        {**BOUND, "claim": "a tenth", "arm": "frozen", "less": "alternating", "at_least": 10.0, "of": "mean"},
    ]
    path = written(tmp_path, config={**LINEAR, "problem": problem}, every=2, bounds=bounds, contrasts=[], log10=True)
    said = decided(path, tmp_path / "out")
    assert "it is near: 0.862 [0.862, 0.862], seen" in said
    trials = Trials("own", entries.read(str(path)), tmp_path / "out", tmp_path)
    of_claims = findings(trials)
    assert [finding.verdict.word for finding in of_claims] == [
        "seen",
        "not seen here",
        "seen",
        "seen",
        "seen",
        "not seen here",
    ]
    cosine2 = 1 - 0.9**2  # |b|^2 of the first iteration; the step and its normalisation are Algorithm 2's
    step = 0.3
    first = (1 - 2 * step * cosine2) / math.sqrt(1 + 4 * step**2 * cosine2 * 0.9**2)
    assert of_claims[0].paired.differences == pytest.approx([first] * 3)
    last = of_claims[3].paired.mean  # a mean of logarithms; on every run the numbers are the metric's
    assert of_claims[4].paired.differences == pytest.approx([0.9 / 10**last] * 3)
    assert of_claims[5].paired.differences == pytest.approx([math.log10(0.9) - last] * 3)
    curve = trials.curve(next(trial for trial in trials.runs() if trial.arm == "alternating"))
    assert (curve.rounds, curve.values[0]) == ([0, 2, 4, 6], pytest.approx(0.9))
    lines = "\n".join(page(tmp_path / "out"))
    assert "kept in all 3 runs; the values differ by rounding" in lines
    assert r"| each at most 0.95 times the one before (\|b\| of Lemma 0) |" in lines
    assert "| at least 0.8999 and at most 0.9001 (Lemma 0) |" in lines
    assert "| at most 0.5 in the mean (Lemma 0) |" in lines
    assert "| at least 10 times alternating in the mean (Lemma 0) |" in lines


@pytest.mark.slow
def test_smallest_score_of_a_run_counts_where_an_entry_says_so(tmp_path: Path) -> None:
    """A step that is too large takes the angle past its least."""
    arms = {**ENTRY["arms"], "wild": {"algorithm": {"name": "rolora-linear"}, "train": {**TRAIN, "lr": 2.0}}}
    path = written(tmp_path, arms=arms, take="smallest", seeds=[0])
    decided(path, tmp_path / "out")
    trials = Trials("own", entries.read(str(path)), tmp_path / "out", tmp_path)
    (wild,) = (trial for trial in trials.runs() if trial.arm == "wild")
    values = trials.curve(wild).values
    assert trials.entry.score.of(wild) == min(values) < values[-1]


@pytest.mark.slow
def test_own_rows_are_scored_under_one_name(tmp_path: Path) -> None:
    config = {**LINEAR, "data": {"source": "builtin:linear", "validation_fraction": 0.25}, "rounds": 1}
    config["problem"] = {"kind": "heads", "clients": 4, "rows": 12, "inputs": 5}
    train = {**TRAIN, "batch_size": 9}
    arms = {name: {"algorithm": {"name": name}, "train": train} for name in ("fedavg", "local")}
    contrast = {**ENTRY["contrasts"][0], "plus": ["fedavg"], "minus": ["local"]}
    path = written(tmp_path, config=config, arms=arms, contrasts=[contrast], metric="own.loss", seeds=[0, 1])
    decided(path, tmp_path / "out")
    trials = Trials("own", entries.read(str(path)), tmp_path / "out", tmp_path)
    assert [len(finding.paired.differences) for finding in findings(trials)] == [2]


@pytest.mark.slow
def test_logarithm_of_zero_is_told(tmp_path: Path) -> None:
    """A is frozen in the first round, so it does not drift."""
    config = {**LINEAR, "evaluation": {"diagnostics_every": 1}}
    path = written(tmp_path, config=config, metric="diagnostics.drift_A", log10=True)
    result = CliRunner().invoke(app, ["reproduce", str(path), "--out", str(tmp_path / "out"), "--device", "cpu"])
    assert result.exit_code == 2
    assert "is 0.0 after 1 rounds of alternating-seed-0" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        ({}, "at_least, at_most or both, or it has a factor"),
        ({"factor": 0.9, "at_most": 1.0}, "at_least, at_most or both, or it has a factor"),
        ({"at_least": 2.0, "at_most": 1.0}, "at_least is above at_most"),
        ({"factor": 0.9, "of": "mean"}, "leave out of and less"),
        ({"at_most": 0.9, "less": "none"}, "arms that are not there: none"),
        ({"arm": "none", "at_most": 1.0}, "arms that are not there: none"),
    ],
)
def test_bound_that_is_none_is_refused(tmp_path: Path, bound: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        entries.read(str(written(tmp_path, bounds=[{**BOUND, **bound}])))


def test_entry_needs_a_claim_and_a_factor_its_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="contrasts, bounds or both"):
        entries.read(str(written(tmp_path, contrasts=[])))
    with pytest.raises(ConfigError, match="whose value before the first round is known"):
        entries.read(str(written(tmp_path, metric="personal.loss", bounds=[{**BOUND, "factor": 0.9}])))
