"""The page of all entries: what an open claim would take."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from made_up_runs import entry, made, write
from rondo.study.claims import page


@pytest.mark.parametrize(
    ("paper", "of_seeds", "told"),
    [
        (1.0, [0.5, 0.6, 2.9], "open; 67 seeds would decide, 0.1 h more"),
        (1.0, [1.999, 2.0, 2.001], "seen"),
        (None, [0.0, 1.0001, 2.0], "open"),
    ],
)
def test_open_claim_tells_the_seeds_and_hours_that_would_decide_it(
    paper: float | None, of_seeds: Sequence[float], told: str, tmp_path: Path
) -> None:
    """Differences of -0.5, -0.4 and 1.9 are of a mean that 67 such seeds would tell from zero; no number of seeds tells
    that of the last from zero."""
    trials = made(tmp_path, entry(paper), {"dear": (20, [0.0]), "cheap": (20, [0.0])})
    for trial in trials.runs():
        write(trial.folder, 20, [of_seeds[trial.seed] if trial.arm == "dear" else 1.0])
    (finding,) = page.write(trials, tmp_path / "pages")
    (claim,) = json.loads((tmp_path / "pages" / "facts" / "own.json").read_text(encoding="utf-8"))["claims"]
    seeds = finding.verdict.seeds
    assert (claim.get("deciding_seeds"), claim.get("deciding_seconds")) == (
        (None, None) if seeds is None else (seeds, (seeds - 3) * 2 * 1.0)
    )
    assert f"| 3 | {told} | " in (tmp_path / "pages" / "all.md").read_text(encoding="utf-8")
