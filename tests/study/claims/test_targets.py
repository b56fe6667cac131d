"""Claims on the bytes to a target, of made-up records: of runs that reach it, and of runs that never do."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from made_up_runs import CONFIG, PRIVATE, entry, made
from rondo.errors import ConfigError
from rondo.records.curve import Curve
from rondo.study.claims import page
from rondo.study.claims.entry import Entry
from rondo.study.claims.findings import findings

CLAIM = {"claim": "the cheap one needs fewer", "plus": ["dear"], "minus": ["cheap"], "source": "none"}
OFTEN = [1.0, 2.0, 3.0, 4.0]


def on_bytes(target: float = 3.0, paper: float | None = None, **changes: Any) -> Entry:
    contrast = {**CLAIM, "target": target} | ({} if paper is None else {"paper": paper})
    return entry(contrasts=[contrast], **changes)


def test_claim_is_on_the_logarithm_of_the_bytes_of_the_first_value_that_reaches_the_target(tmp_path: Path) -> None:
    of_arm = {"dear": (400, OFTEN), "cheap": (10, [1.0, 3.5, 2.0, 9.0])}
    (finding,) = findings(made(tmp_path, on_bytes(paper=1.0), of_arm))
    assert finding.paired.differences == pytest.approx([math.log10(3 * 400 / 20)] * 3)
    assert finding.verdict.word == "seen"
    assert (finding.equal_bytes, finding.unreached) == (None, {})


def test_bytes_are_those_per_client(tmp_path: Path) -> None:
    of_arm = {"dear": (400, OFTEN), "cheap": (10, OFTEN)}
    (finding,) = findings(made(tmp_path, on_bytes(), of_arm, {"dear": 40, "cheap": 1}))
    assert finding.paired.mean == pytest.approx(0.0)


@pytest.mark.parametrize(("lower", "sent"), [(True, 10), (False, 30)])
def test_target_of_a_loss_is_reached_from_above(lower: bool, sent: float) -> None:
    curve = Curve([1, 2, 3], [10, 20, 30], [0.5, 0.7, 0.9])
    assert curve.bytes_to(0.6 if lower else 0.8, lower_is_better=lower) == sent
    assert curve.bytes_to(0.4 if lower else 0.95, lower_is_better=lower) is None


@pytest.mark.parametrize(
    ("dear", "cheap", "reached", "never"),
    [
        # Never reached: it counts with all of its 1,600 bytes, and would need more.
        ([1.0] * 4, OFTEN, "seen, smaller", "seen, smaller"),
        (OFTEN, [1.0] * 4, "seen, smaller", "open"),
        ([1.0] * 4, [1.0] * 4, "seen, smaller", "open"),
    ],
)
def test_run_that_never_reaches_the_target_gives_no_verdict_that_it_helps(
    dear: Sequence[float], cheap: Sequence[float], reached: str, never: str, tmp_path: Path
) -> None:
    easy = made(tmp_path / "easy", on_bytes(1.0), {"dear": (400, dear), "cheap": (10, cheap)})
    assert findings(easy)[0].verdict.word == reached
    hard = made(tmp_path / "hard", on_bytes(4.0), {"dear": (400, dear), "cheap": (10, cheap)})
    (finding,) = findings(hard)
    assert finding.verdict.word == never
    assert finding.unreached == {
        arm: 3 for arm, scores in (("dear", dear), ("cheap", cheap)) if list(scores) == [1.0] * 4
    }


@pytest.mark.parametrize(("dear", "cheap", "word"), [(OFTEN, [1.0] * 4, "not seen here"), ([1.0] * 4, OFTEN, "open")])
def test_nor_is_a_claim_unseen_by_what_may_be_larger(
    dear: Sequence[float], cheap: Sequence[float], word: str, tmp_path: Path
) -> None:
    """The cheap one is the dearer here."""
    (finding,) = findings(made(tmp_path, on_bytes(4.0), {"dear": (10, dear), "cheap": (400, cheap)}))
    assert finding.verdict.word == word


def test_page_says_what_such_a_claim_is_on_and_which_runs_never_reach_it(tmp_path: Path) -> None:
    trials = made(tmp_path, on_bytes(4.0, paper=1.0), {"dear": (400, [1.0] * 4), "cheap": (10, OFTEN)})
    page.write(trials, tmp_path / "pages")
    said = (tmp_path / "pages" / "own.md").read_text(encoding="utf-8")
    assert "decimal logarithm of the bytes per client" in said
    (line,) = (line for line in said.splitlines() if line.startswith("| the cheap one needs fewer |"))
    assert "(never reached by dear in 3 of 3 runs, which count with all their bytes)" in line
    assert "| - | - | 3 |" in line
    index = (tmp_path / "pages" / "all.md").read_text(encoding="utf-8")
    assert "(never reached by dear in 3 of 3 runs, which count with all their bytes)" in index


def test_other_pages_do_not_speak_of_targets(tmp_path: Path) -> None:
    page.write(made(tmp_path, entry(), {"dear": (400, OFTEN), "cheap": (10, OFTEN)}), tmp_path / "pages")
    assert "target" not in (tmp_path / "pages" / "own.md").read_text(encoding="utf-8")


def test_target_that_is_reached_without_a_byte_is_told(tmp_path: Path) -> None:
    trials = made(tmp_path, on_bytes(), {"dear": (10, OFTEN), "cheap": (0, OFTEN)})
    with pytest.raises(ConfigError, match="cheap sends no byte by then"):
        findings(trials)


def test_bytes_to_a_target_that_are_a_secret_are_told(tmp_path: Path) -> None:
    trials = made(tmp_path, on_bytes(config={**CONFIG, **PRIVATE}), {"dear": (20, OFTEN), "cheap": (10, OFTEN)})
    with pytest.raises(ConfigError, match="bytes would tell how many clients took part in a round"):
        findings(trials)


def test_target_that_is_reached_before_the_first_byte_is_told(tmp_path: Path) -> None:
    trials = made(tmp_path, on_bytes(), {"dear": (10, OFTEN), "cheap": (10, OFTEN)})
    for trial in trials.runs():
        file = trial.folder / "summary.json"
        summary = json.loads(file.read_text(encoding="utf-8"))
        file.write_text(json.dumps({**summary, "measures": {"before": {"score": 9.0}}}), encoding="utf-8")
    with pytest.raises(ConfigError, match="dear sends no byte by then"):
        findings(trials)


def test_target_changes_no_run_and_no_search() -> None:
    """Records and tuned values of an entry stay when it gets one."""
    plain, more = entry(), on_bytes()
    for arm in plain.arms:
        assert more.digest(arm) == plain.digest(arm)
        assert more.run(arm, 0, Path()) == plain.run(arm, 0, Path())
