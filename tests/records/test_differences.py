"""Differences of methods to a reference, paired, with Holm's p."""

from __future__ import annotations

import pytest

from rondo.records.paired import against, holm

SCORES = {
    "a": {"0": 0.50, "1": 0.55, "2": 0.52},
    "b": {"0": 0.60, "1": 0.68, "2": 0.61},
    "c": {"0": 0.51, "1": 0.54, "2": 0.53, "9": 0.9},
    "alone": {"7": 0.4},
    "once": {"0": 0.7},
}


def test_differences_are_of_pairs_alone() -> None:
    found = against(SCORES, dict.fromkeys(("b", "c", "alone", "once"), "a"))
    assert list(found) == ["b", "c", "once"]
    assert found["c"].by_pair == pytest.approx({"0": 0.01, "1": -0.01, "2": 0.01})
    assert found["once"].p is None, "one pair has no interval"


def test_p_is_that_of_the_paired_t_test_corrected() -> None:
    stats = pytest.importorskip("scipy.stats")
    found = against(SCORES, {"b": "a", "c": "a"})
    alone = [stats.ttest_rel([*SCORES[name].values()][:3], [*SCORES["a"].values()]).pvalue for name in "bc"]
    assert [found[name].p for name in "bc"] == pytest.approx(holm(alone))
    assert found["b"].p == pytest.approx(2 * alone[0])


def test_equal_differences_have_no_p() -> None:
    """Their deviation is zero, so t would be infinite, of two seeds too."""
    found = against({"a": {"0": 0.5, "1": 0.6}, "b": {"0": 0.6, "1": 0.7}}, {"b": "a"})
    assert found["b"].p is None
