"""Differences at equal bytes, and the change at a curve's end, of made-up records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rondo.reproduce.entry import Entry
from rondo.reproduce.findings import findings
from rondo.reproduce.trials import Trials
from rondo.tune.trial import Curve, Score, Trial, place

CONFIG: dict[str, Any] = {
    "model": {"name": "builtin:linear"},
    "task": {"kind": "linear"},
    "data": {"source": "builtin:linear", "validation_fraction": 0.0},
    "train": {"optimizer": "sgd", "max_grad_norm": 0.0},
}


def entry(paper: float | None = 1.0, **changes: Any) -> Entry:
    contrast = {"claim": "the dear one is ahead", "plus": ["dear"], "minus": ["cheap"], "source": "none"}
    contrasts = [contrast if paper is None else {**contrast, "paper": paper}]
    arms = {"dear": {"algorithm": {"name": "rolora-linear"}}, "cheap": {"algorithm": {"name": "fedit"}}}
    return Entry.model_validate(
        {
            **dict.fromkeys(("paper", "item", "title", "differs"), "x"),
            "metric": "measures.score",
            "seeds": [0, 1, 2],
            "seconds": 1,
            "config": CONFIG,
            "arms": arms,
            "contrasts": contrasts,
            **changes,
        }
    )


def made(folder: Path, entry: Entry, of_arm: Mapping[str, tuple[int, Sequence[float]]]) -> Trials:
    """The entry's runs, each with its arm's bytes per round and scores, a thousandth higher per seed with ``dear``."""
    trials = Trials("own", entry, folder, folder)
    for trial in trials.runs():
        sent, scores = of_arm[trial.arm]
        trial.folder.mkdir(parents=True)
        more = trial.seed / 1000 if trial.arm == "dear" else 0.0
        write(trial.folder, sent, [score + more for score in scores])
    return trials


def write(folder: Path, sent: int, scores: Sequence[float]) -> None:
    lines = [
        {"round": k, "bytes_up": sent - 1, "bytes_down": 1, "scores": {}, "measures": {"score": s}, "diagnostics": None}
        for k, s in enumerate(scores)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    (folder / "summary.json").write_text(
        json.dumps({"seconds": {"all": 1.0}, "measures": {"before": {}}}), encoding="utf-8"
    )


def test_dearer_method_holds_at_equal_rounds_and_fails_at_equal_bytes(tmp_path: Path) -> None:
    trials = made(tmp_path, entry(), {"dear": (20, [0.0, 0.1, 3.0, 4.0]), "cheap": (10, [1.0, 1.5, 2.0, 2.5])})
    (finding,) = findings(trials)
    assert finding.paired.differences == pytest.approx((1.5, 1.501, 1.502))
    assert finding.verdict.word == "holds"
    # The cheap one sends 40 bytes in all; the dear one has sent those after two rounds.
    assert finding.equal_bytes is not None
    assert finding.equal_bytes.paired.differences == pytest.approx((-2.4, -2.399, -2.398))
    assert finding.equal_bytes.verdict.word == "refuted"


def test_mean_of_the_last_scores_is_taken_at_equal_bytes_too(tmp_path: Path) -> None:
    trials = made(tmp_path, entry(last=2), {"dear": (20, [0.0, 0.1, 3.0, 4.0]), "cheap": (10, [1.0, 1.5, 2.0, 2.5])})
    (finding,) = findings(trials)
    assert finding.paired.mean == pytest.approx(3.5 - 2.25 + 0.001)
    assert finding.equal_bytes is not None
    assert finding.equal_bytes.paired.mean == pytest.approx(0.05 - 2.25 + 0.001)


def test_stopped_run_does_not_cut_the_others_short(tmp_path: Path) -> None:
    of_arm = {"dear": (20, [0.0, 0.1, 3.0, 4.0]), "cheap": (10, [1.0])}
    trials = made(tmp_path, entry(), of_arm)
    trials.stopped = {trial.folder.name: "diverged" for trial in trials.runs() if trial.arm == "cheap"}
    (finding,) = findings(trials)
    assert finding.equal_bytes is not None
    assert finding.equal_bytes.paired.mean == finding.paired.mean == pytest.approx(3.001)


def test_without_a_score_by_then_there_is_no_verdict(tmp_path: Path) -> None:
    trials = made(tmp_path, entry(), {"dear": (20, [0.0, 4.0]), "cheap": (1, [1.0, 1.0])})
    (finding,) = findings(trials)
    assert (finding.verdict.word, finding.equal_bytes) == ("holds", None)


def test_late_change_is_that_of_the_last_tenth() -> None:
    rounds = list(range(1, 21))
    rising = Curve(rounds, rounds, [float(r) for r in rounds])
    assert Score("x").late_change(rising) == 2.0
    assert Score("x", last=4).late_change(rising) == 2.0
    assert Score("x", take="smallest").late_change(rising) == 0.0
    assert Score("x", log10=True).late_change(rising) == pytest.approx(0.0457575, abs=1e-6)
    flat = Curve(rounds, rounds, [0.0] * 10 + [1.0] * 10)
    assert Score("x").late_change(flat) == 0.0
    assert Score("x").late_change(Curve([20], [1], [0.5])) is None


@pytest.mark.parametrize(
    "metric", ["global.accuracy", "measures.score.mean.of", "scores", "measures.other", "measures"]
)
def test_metric_that_no_record_has_is_told(metric: str, tmp_path: Path) -> None:
    write(tmp_path, 10, [1.0])
    trial = Trial("dear", 0, entry().run("dear", 0, tmp_path), tmp_path)
    with pytest.raises(ValueError, match="no round has a score"):
        Score(metric).curve(trial)


def test_logarithm_of_nothing_is_told(tmp_path: Path) -> None:
    write(tmp_path, 10, [0.0])
    trial = Trial("dear", 0, entry().run("dear", 0, tmp_path), tmp_path)
    with pytest.raises(ValueError, match="which has no logarithm"):
        Score("measures.score", log10=True).curve(trial)


def test_run_directory_is_a_single_name_whatever_the_arm(tmp_path: Path) -> None:
    config = entry().run("dear", 0, tmp_path)
    for arm in ("../up", "a/b", "half the rounds", "package.module:Class"):
        assert place(tmp_path, arm, 0, config).parent == tmp_path
