"""What claims presuppose, what is not as they state it, and forms of one method: the verdicts of made-up runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pydantic
import pytest

from made_up_runs import entry, made
from rondo.study.claims import page
from rondo.study.claims.entry import Entry
from rondo.study.claims.findings import Finding, findings
from rondo.study.tune.tuning import Chosen, Kept

CLAIM: dict[str, Any] = {"claim": "the dear one is ahead", "plus": ["dear"], "minus": ["cheap"], "source": "none"}
FALLS = {"says": "the cheap one has 2", "plus": ["cheap"], "at_least": 2.0}


def found(folder: Path, entry: Entry, dear: Sequence[float] = (1.0,), cheap: Sequence[float] = (0.5,)) -> Finding:
    scores = {"dear": dear, "cheap": cheap, "dear-same": cheap, "cheap-same": dear}
    (finding,) = findings(made(folder, entry, {arm: (10, of) for arm, of in scores.items()}, dict.fromkeys(scores, 1)))
    return finding


@pytest.mark.parametrize(
    ("precondition", "here", "word"),
    [
        (FALLS, 0.5, "not tested as stated"),
        ({**FALLS, "at_least": 0.4}, 0.5, "seen"),
        ({"says": "one is apart", "plus": ["dear"], "minus": ["cheap"], "at_least": 0.4}, 0.501, "seen"),
        ({"says": "it is flat", "flat": ["dear"], "at_most": 0.1}, None, "not tested as stated"),
        ({**FALLS, "claims": ["the dear one is ahead"]}, 0.5, "not tested as stated"),
    ],
)
def test_claim_whose_precondition_is_not_met_is_not_tested(
    precondition: dict[str, Any], here: float | None, word: str, tmp_path: Path
) -> None:
    finding = found(tmp_path, entry(preconditions=[precondition]))
    assert finding.verdict.word == word
    assert finding.equal_bytes is not None
    assert finding.equal_bytes.verdict.word == word
    assert [one.here for one in finding.presupposed] == [pytest.approx(here)]


@pytest.mark.parametrize(("last", "word"), [(1.05, "seen"), (1.5, "not tested as stated")])
def test_curve_has_to_be_flat_in_its_last_tenth(last: float, word: str, tmp_path: Path) -> None:
    flat = {"says": "it is flat", "flat": ["dear"], "at_most": 0.1}
    assert found(tmp_path, entry(preconditions=[flat]), [1.0] * 9 + [last], [0.2] * 10).verdict.word == word


def test_page_says_what_a_claim_presupposes_and_what_the_runs_have_of_it(tmp_path: Path) -> None:
    trials = made(tmp_path, entry(preconditions=[FALLS]), {"dear": (10, [1.0]), "cheap": (10, [0.5])})
    page.write(trials, tmp_path / "pages")
    said = (tmp_path / "pages" / "own.md").read_text(encoding="utf-8")
    assert "- Presupposed: the cheap one has 2. Here 0.5, at least 2 needed: **not met**." in said
    assert "| **not tested as stated**: precondition not met: the cheap one has 2 |" in said


@pytest.mark.parametrize("dear", [1.0, 0.5, 0.0])
def test_claim_at_another_budget_is_not_tested_whatever_the_contrast_says(dear: float, tmp_path: Path) -> None:
    finding = found(tmp_path, entry(contrasts=[{**CLAIM, "untested": "budget: 40 rounds, not 500"}]), [dear])
    assert (finding.verdict.word, finding.verdict.reason) == ("not tested as stated", "budget: 40 rounds, not 500")


@pytest.mark.parametrize(
    ("plus", "minus", "word"), [("dear-same", "cheap-same", "open"), ("cheap-same", "dear-same", "seen")]
)
def test_verdict_on_two_forms_that_turns_with_the_rate_is_open(
    plus: str, minus: str, word: str, tmp_path: Path
) -> None:
    common = {"plus": [plus], "minus": [minus]}
    arms = {arm: {"algorithm": {"name": "fedit"}} for arm in ("dear", "cheap", plus, minus)}
    contrast = {**CLAIM, "paper": 0.4, "one_rate": True, "common": common}
    finding = found(tmp_path, entry(arms=arms, contrasts=[contrast]))
    assert finding.verdict.word == word
    assert finding.common is not None
    assert finding.common.mean == pytest.approx(-0.5 if word == "open" else 0.5)
    if word == "open":
        assert finding.verdict.reason == "it turns with the rate: seen at each one's own, not seen here at a common one"


@pytest.mark.parametrize(("cheap", "word"), [(0.3, "open"), (0.1, "seen")])
def test_two_forms_at_rates_of_their_own_are_open_until_they_ran_at_one(
    cheap: float, word: str, tmp_path: Path
) -> None:
    tuning = {"grid": {"train.lr": [0.1, 0.3]}, "seeds": [7], "held_out": 0.0}
    of_forms = entry(tuning=tuning, contrasts=[{**CLAIM, "paper": 0.4, "one_rate": True}])
    chosen = {
        arm: Chosen(digest=of_forms.digest(arm), values={"train.lr": rate}, trials=2)
        for arm, rate in (("dear", 0.1), ("cheap", cheap))
    }
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "tuned.json").write_text(Kept(arms=chosen).model_dump_json(), encoding="utf-8")
    finding = found(tmp_path, of_forms)
    assert (finding.verdict.word, finding.common) == (word, None)


def test_arm_with_a_rate_in_its_own_table_stands_beside_those_that_are_searched(tmp_path: Path) -> None:
    """As an arm at a common rate does: nothing chose its rate, so it is at no edge of the grid."""
    arms = {"dear": {}, "cheap": {}, "cheap-same": {"train": {"lr": 0.1}}}
    common = {"plus": ["dear"], "minus": ["cheap-same"]}
    tuning = {"grid": {"train.lr": [0.1, 0.3]}, "seeds": [7], "held_out": 0.0}
    mixed = entry(arms=arms, tuning=tuning, contrasts=[{**CLAIM, "one_rate": True, "common": common}])
    chosen = {
        arm: Chosen(digest=mixed.digest(arm), values={"train.lr": rate}, trials=2)
        for arm, rate in (("dear", 0.1), ("cheap", 0.3))
    }
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "tuned.json").write_text(Kept(arms=chosen).model_dump_json(), encoding="utf-8")
    curves = {"dear": (10, [1.0]), "cheap": (10, [0.5]), "cheap-same": (10, [0.6])}
    page.write(made(tmp_path, mixed, curves, dict.fromkeys(curves, 1)), tmp_path / "pages")
    said = (tmp_path / "pages" / "own.md").read_text(encoding="utf-8")
    assert "at a common rate 0.4" in said
    (row,) = [line for line in said.splitlines() if line.startswith("| cheap-same |")]
    assert row.endswith("| train.lr = 0.1, given |")
    assert (
        "At an edge of the grid, so that a wider one may suit them better: dear (train.lr), cheap (train.lr)." in said
    )


@pytest.mark.parametrize(
    ("precondition", "message"),
    [
        ({"says": "x"}, "plus and at_least, or it has flat and at_most"),
        ({**FALLS, "flat": ["dear"], "at_most": 1.0}, "plus and at_least, or it has flat and at_most"),
        ({**FALLS, "at_least": None}, "at_least goes with plus"),
        ({**FALLS, "plus": ["none"]}, "arms that are not there: none"),
        ({**FALLS, "claims": ["none"]}, "claims that are not there: none"),
    ],
)
def test_precondition_that_is_none_is_refused(precondition: dict[str, Any], message: str) -> None:
    with pytest.raises(pydantic.ValidationError, match=message):
        entry(preconditions=[precondition])


def test_what_is_untested_says_which_of_three_differs() -> None:
    with pytest.raises(pydantic.ValidationError, match="String should match pattern"):
        entry(contrasts=[{**CLAIM, "untested": "too few rounds"}])
