"""Intervals and probabilities of Student's t, Holm's correction, and the verdicts that they lead to."""

from __future__ import annotations

import math

import pytest

from rondo.records.paired import Paired, holm, quantile, within
from rondo.study.claims.verdict import Odds, Verdict, beyond, judge, least


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (9, 2.26216), (30, 2.04227)]
)
def test_quantiles_are_those_of_the_tables(freedom: int, t: float) -> None:
    assert quantile(0.95, freedom) == pytest.approx(t, abs=6e-5)
    assert within(t, freedom) == pytest.approx(0.95, abs=1e-6)


def test_probabilities_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    for freedom in range(1, 40):
        for t in (0.0, 0.3, 1.0, 2.5, 9.0):
            assert within(t, freedom) == pytest.approx(1 - 2 * stats.t.sf(t, freedom), abs=1e-13)


def test_interval_of_a_known_sample() -> None:
    """The sample, its t and p: Student's sleep data (1908), the differences of the two drugs."""
    differences = [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4]
    paired = Paired.of(differences)
    assert paired.mean == pytest.approx(1.58)
    assert paired.interval == pytest.approx((0.7001142, 2.4598858), abs=1e-6)
    assert paired.p == pytest.approx(0.00283289, abs=1e-7)


def judged(paired: Paired, paper: float | None, claims: int = 1) -> Verdict:
    """The verdict with the other ``claims`` of its table alike."""
    odds = (paired.p, beyond(paired, least(paper)))
    return judge(paired, Odds(*(holm([one] * claims)[0] for one in odds)), paper, claims)


def test_samples_without_a_spread() -> None:
    assert Paired.of([0.5]).interval is None
    assert (Paired.of([0.5, 0.5]).interval, Paired.of([0.5, 0.5]).p) == ((0.5, 0.5), 0.0)
    assert Paired.of([0.0, 0.0]).p == 1.0
    with pytest.raises(ValueError, match="no differences"):
        Paired.of([])


def test_holm_keeps_the_order_and_never_falls() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("differences", "paper", "word"),
    [
        ([0.05, 0.06, 0.055, 0.05], 0.1, "seen"),
        ([0.02, 0.03, 0.025, 0.02], 0.1, "seen, smaller"),
        ([0.02, 0.03, 0.025, 0.02], None, "seen, smaller"),
        ([0.01, -0.01, 0.005, -0.005], 0.1, "not seen here"),
        ([-0.05, -0.06, -0.055, -0.05], None, "not seen here"),
        ([0.05, -0.03, 0.09, -0.02], 0.1, "open"),
        ([0.05, -0.03, 0.09, -0.02], None, "open"),
        ([0.2], 0.1, "open"),
    ],
)
def test_every_verdict(differences: list[float], paper: float | None, word: str) -> None:
    assert judged(Paired.of(differences), paper).word == word


def test_verdict_goes_by_the_corrected_probability() -> None:
    """Alone it would be seen, or not seen; beside nineteen others it is open."""
    for differences, word in (([0.05, 0.09, 0.02, 0.06], "seen"), ([0.0, 0.02, -0.015, 0.005], "not seen here")):
        paired = Paired.of(differences)
        assert judged(paired, 0.1).word == word
        assert judged(paired, 0.1, 20).word == "open"


def test_open_claim_below_the_half_says_that_p_is_corrected() -> None:
    verdict = judged(Paired.of([0.0, 0.02, -0.015, 0.005]), 0.1, 20)
    why = "below half of the paper's effect, but p, corrected for the other claims, is not below 0.05"
    assert (verdict.word, verdict.reason) == ("open", why)


def test_open_claim_above_zero_says_that_p_is_corrected() -> None:
    """And more seeds are needed than for an interval that excludes zero, which there is already."""
    paired = Paired.of([0.05, 0.09, 0.02, 0.06])
    assert paired.interval is not None
    assert paired.interval[0] > 0
    verdict = judged(paired, 0.1, 20)
    assert verdict.word == "open"
    assert verdict.reason == "above zero, but p, corrected for the other claims, is not below 0.05"

    def corrected(count: int) -> float:
        return 20 * (1 - within(paired.mean * math.sqrt(count) / paired.sd, count - 1))

    assert verdict.seeds is not None
    assert corrected(verdict.seeds) < 0.05 <= corrected(verdict.seeds - 1)


def test_one_seed_says_nothing_of_the_seeds_that_would_decide() -> None:
    assert judged(Paired.of([0.2]), 0.1).seeds is None


def test_open_claim_names_the_seeds_that_would_decide_it() -> None:
    differences = [0.09, -0.03, 0.06, -0.01]
    paired = Paired.of(differences)
    verdict = judged(paired, 0.1)
    assert verdict.seeds is not None

    def half_width(count: int) -> float:
        return quantile(0.95, count - 1) * paired.sd / math.sqrt(count)

    assert half_width(verdict.seeds) < paired.mean <= half_width(verdict.seeds - 1)
    never = judged(Paired.of([1.0, -1.0]), None)
    assert never.seeds is None
    assert never.reason == "the interval includes zero, nor would 1,000 seeds like these decide"


def test_reason_is_of_what_was_asked() -> None:
    """Without a number there is no half of an effect; and a mean below it does not exclude it."""
    above = Paired.of([0.02, 0.03, 0.025, 0.02])
    assert judged(above, 0.1).reason == "above zero, and its mean is less than half of the paper's effect"
    across = Paired.of([0.05, -0.03, 0.09, -0.02])
    assert judged(across, 0.1).reason == "the interval excludes neither zero nor half of the effect"
    assert judged(across, None).reason == "the interval includes zero"
