"""Differences at the end and at equal bytes per client, and the change at a curve's end, of made-up records."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from made_up_runs import CONFIG, PRIVATE, entry, made, write
from rondo.records.curve import Curve
from rondo.records.paired import Paired
from rondo.study.claims import page
from rondo.study.claims.findings import findings
from rondo.study.claims.trials import Trials
from rondo.study.runs import Trial, place
from rondo.study.score import Score
from rondo.study.tune.tuning import Chosen, Kept, Tried


def test_dearer_method_holds_at_the_end_and_fails_at_equal_bytes(tmp_path: Path) -> None:
    trials = made(tmp_path, entry(), {"dear": (20, [0.0, 0.1, 3.0, 4.0]), "cheap": (10, [1.0, 1.5, 2.0, 2.5])})
    (finding,) = findings(trials)
    assert finding.paired.differences == pytest.approx((1.5, 1.501, 1.502))
    assert finding.verdict.word == "seen"
    # The cheap one sends 40 bytes in all; the dear one has sent those after two rounds.
    assert finding.equal_bytes is not None
    assert finding.equal_bytes.paired.differences == pytest.approx((-2.4, -2.399, -2.398))
    assert finding.equal_bytes.verdict.word == "not seen here"


def test_scores_that_differ_by_rounding_are_one_score(tmp_path: Path) -> None:
    trials = made(tmp_path, entry(), {"dear": (20, [0.0, 0.3]), "cheap": (20, [0.0, 0.1 + 0.2])})
    for trial in trials.runs():
        write(trial.folder, 20, [0.3 if trial.arm == "dear" else 0.1 + 0.2])
    (finding,) = findings(trials)
    assert finding.paired.differences == (0.0, 0.0, 0.0)
    assert (finding.p, finding.verdict.word) == (1.0, "not seen here")


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


def test_more_clients_that_send_as_much_each_are_not_cut_short(tmp_path: Path) -> None:
    """A claim about the number of clients: all together 25 times as many send 25 times as much."""
    of_arm = {"dear": (500, [1.0, 2.0, 3.0, 4.0]), "cheap": (20, [1.0, 1.5, 2.0, 2.5])}
    (finding,) = findings(made(tmp_path, entry(), of_arm, {"dear": 500, "cheap": 20}))
    assert finding.equal_bytes is not None
    assert finding.equal_bytes.paired == finding.paired
    assert finding.equal_bytes.verdict.word == "seen"


def test_clients_of_a_run_that_stopped_are_those_of_its_partition(tmp_path: Path) -> None:
    of_arm = {"dear": (500, [0.0, 0.1, 3.0]), "cheap": (20, [1.0, 1.5])}
    trials = made(tmp_path, entry(), of_arm, {"dear": 500, "cheap": 20})
    trials.stopped = {trial.folder.name: "diverged" for trial in trials.runs() if trial.arm == "dear"}
    for name in trials.stopped:
        (trials.folder / name / "summary.json").unlink()
        partition = {"clients": {str(i): {"train": 1} for i in range(500)}}
        (trials.folder / name / "partition.json").write_text(json.dumps(partition), encoding="utf-8")
    (finding,) = findings(trials)
    assert finding.equal_bytes is not None
    assert finding.equal_bytes.paired.differences == pytest.approx((-1.4, -1.399, -1.398))


def test_runs_that_end_after_other_rounds_are_said_to(tmp_path: Path) -> None:
    of_arm = {"dear": (20, [0.0, 0.1]), "cheap": (10, [1.0, 1.5, 2.0, 2.5])}
    trials = made(tmp_path, entry(), of_arm)
    (finding,) = page.write(trials, tmp_path / "pages")
    assert page.at_end(finding, trials) == "-2.40 [-2.40, -2.40] (rounds: dear 2, cheap 4)"
    for name in ("own.md", "all.md"):
        written = (tmp_path / "pages" / name).read_text(encoding="utf-8")
        assert "equal rounds" not in written
        assert "(rounds: dear 2, cheap 4) | " in written
    lines = (tmp_path / "pages" / "own.md").read_text(encoding="utf-8").splitlines()
    (dear,) = (line for line in lines if line.startswith("| dear |"))
    assert dear.endswith("| 3 | 2 | 1 | 40 B | - |")


@pytest.mark.parametrize(("dear", "words"), [(20, "rounds and over bytes per client"), (10, "rounds")])
def test_picture_is_over_bytes_too_where_arms_send_other_bytes(dear: int, words: str, tmp_path: Path) -> None:
    trials = made(tmp_path, entry(), {"dear": (dear, [0.0, 0.1]), "cheap": (10, [1.0, 1.5])})
    page.write(trials, tmp_path / "pages")
    assert f"![Scores over {words}](own.png)" in (tmp_path / "pages" / "own.md").read_text(encoding="utf-8")


def test_seeds_whose_runs_are_missing_are_named(tmp_path: Path) -> None:
    """As of an entry that has got more seeds: its first ones still count."""
    of_arm = {"dear": (20, [0.0, 0.1]), "cheap": (10, [1.0, 1.5])}
    made(tmp_path, entry(), of_arm)
    more = Trials("own", entry(seeds=[0, 1, 2, 3, 4]), tmp_path, tmp_path)
    (finding,) = page.write(more, tmp_path / "pages")
    assert len(finding.paired.differences) == 3
    written = (tmp_path / "pages" / "own.md").read_text(encoding="utf-8")
    assert "4 runs are missing, of the seeds 3, 4, about 0.0 h." in written


def test_rounds_are_not_named_where_all_runs_have_as_many(tmp_path: Path) -> None:
    trials = made(tmp_path, entry(), {"dear": (20, [0.0, 0.1]), "cheap": (10, [1.0, 1.5])})
    (finding,) = findings(trials)
    assert page.at_end(finding, trials) == page.here(finding.of, finding, trials)


def test_mean_that_is_a_rounding_is_shown_as_zero(tmp_path: Path) -> None:
    trials = made(tmp_path, entry(), {"dear": (20, [0.0, 0.1]), "cheap": (10, [1.0, 1.5])})
    (finding,) = findings(trials)
    for value, shown in ((1e-16, "0 ["), (1e-6, "1e-06 [")):
        rounded = replace(finding, paired=Paired.of([0.0025 + value, -0.0025 + value]))
        assert page.here(finding.of, rounded, trials).startswith(shown)


def test_rounds_of_an_arm_whose_runs_stopped_are_a_range(tmp_path: Path) -> None:
    trials = made(tmp_path, entry(), {"dear": (20, [0.0, 0.1, 0.2]), "cheap": (10, [1.0, 1.5, 2.0])})
    first = next(trial for trial in trials.runs() if trial.arm == "cheap")
    write(first.folder, 10, [1.0])
    (finding,) = findings(trials)
    assert finding.rounds == {"dear": "3", "cheap": "1 to 3"}


def test_probability_without_digits_is_below_a_bound(tmp_path: Path) -> None:
    """One less a probability near one has no digits left."""
    trials = made(tmp_path, entry(seeds=list(range(10))), {"dear": (10, [9.0]), "cheap": (10, [1.0])})
    page.write(trials, tmp_path / "pages")
    said = (tmp_path / "pages" / "own.md").read_text(encoding="utf-8")
    assert "| 8.00 [8.00, 8.01], p < 1e-12 |" in said
    assert "p = 0" not in said


def test_one_difference_for_all_seeds_has_no_probability(tmp_path: Path) -> None:
    trials = made(tmp_path, entry(), {"dear": (10, [9.0]), "cheap": (10, [1.0])})
    for trial in trials.runs():
        write(trial.folder, 10, [9.0 if trial.arm == "dear" else 1.0])
    page.write(trials, tmp_path / "pages")
    assert "| 8.00 [8.00, 8.00], the same for all seeds |" in (tmp_path / "pages" / "own.md").read_text(
        encoding="utf-8"
    )


def test_without_a_score_by_then_there_is_no_verdict(tmp_path: Path) -> None:
    trials = made(tmp_path, entry(), {"dear": (20, [0.0, 4.0]), "cheap": (1, [1.0, 1.0])})
    (finding,) = findings(trials)
    assert (finding.verdict.word, finding.equal_bytes) == ("seen", None)


def test_claim_on_rounds_alone_has_no_verdict_at_equal_bytes(tmp_path: Path) -> None:
    contrast = entry().contrasts[0].model_dump() | {"rounds_alone": "a theorem on rounds"}
    of_arm = {"dear": (20, [0.0, 0.1, 3.0, 4.0]), "cheap": (10, [1.0, 1.5, 2.0, 2.5])}
    trials = made(tmp_path, entry(contrasts=[contrast], remarks="All of it is made up."), of_arm)
    (finding,) = page.write(trials, tmp_path / "pages")
    assert (finding.verdict.word, finding.equal_bytes) == ("seen", None)
    text = (tmp_path / "pages" / "own.md").read_text(encoding="utf-8")
    assert "| - | a theorem on rounds | 3 |" in text
    assert "Seen in the runs: All of it is made up." in text.splitlines()


@pytest.mark.parametrize(("scores", "word"), [([0.5, 0.5, 0.5], "open"), ([0.6, 0.5, 0.5], "seen")])
def test_claim_on_an_arm_whose_trials_score_alike_is_open(scores: list[float], word: str, tmp_path: Path) -> None:
    """Nothing chose the values that it has."""
    tuning = {"grid": {"train.lr": [0.1, 0.2, 0.3]}, "seeds": [7]}
    own = entry(tuning={**tuning, "held_out": 0.0})
    points = [{"train.lr": rate} for rate in (0.1, 0.2, 0.3)]

    def tuned(arm: str, of_points: list[float]) -> Chosen:
        tried = [Tried(values=point, scores=[score]) for point, score in zip(points, of_points, strict=True)]
        return Chosen(digest=own.digest(arm), values=points[0], trials=3, tried=tried)

    both = {"dear": tuned("dear", scores), "cheap": tuned("cheap", [0.6, 0.5, 0.4])}
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "tuned.json").write_text(Kept(arms=both).model_dump_json(), encoding="utf-8")
    of_arm = {"dear": (20, [0.0, 0.1, 3.0, 4.0]), "cheap": (20, [1.0, 1.5, 2.0, 2.5])}
    trials = made(tmp_path, own, of_arm)
    (finding,) = findings(trials)
    assert finding.equal_bytes is not None
    assert finding.verdict.word == finding.equal_bytes.verdict.word == word
    if word == "open":
        assert finding.verdict.reason == "all trials of dear score alike, so nothing chose its values"


def test_runs_whose_turnout_is_a_secret_have_no_bytes(tmp_path: Path) -> None:
    of_arm = {"dear": (20_000, [0.0, 0.1, 3.0, 4.0]), "cheap": (10_000, [1.0, 1.5, 2.0, 2.5])}
    trials = made(tmp_path, entry(config={**CONFIG, **PRIVATE}), of_arm)
    for trial in trials.runs():
        summary = json.loads((trial.folder / "summary.json").read_text(encoding="utf-8"))
        summary["privacy"] = {"adversary": "reader", "unit": "client", "delta": 1e-3, "epsilon_valid": True}
        summary["privacy"]["epsilon"] = 8.0 if trial.arm == "dear" else None
        (trial.folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    (finding,) = findings(trials)
    assert (finding.verdict.word, finding.equal_bytes) == ("seen", None)
    assert [trials.curve(trial).bytes for trial in trials.runs()] == [None] * 6
    page.write(trials, tmp_path / "pages")
    text = (tmp_path / "pages" / "own.md").read_text(encoding="utf-8")
    assert text.count("how many clients took part is a secret") == 1
    assert [line for line in text.splitlines() if "kB" in line or "so few bytes" in line] == []
    said = "differential privacy of clients, against who reads the released model: "
    assert f"- dear: {said}epsilon 8 at delta 0.001." in text.splitlines()
    assert f"- cheap: {said}none." in text.splitlines()


def test_late_change_is_that_of_the_last_tenth() -> None:
    rounds = list(range(1, 21))
    rising = Curve(rounds, rounds, [float(r) for r in rounds])
    assert Score("x").late_change(rising) == 2.0
    for score in (Score("x", last=4), Score("x", last=20), Score("x", take="smallest")):  # of the values themselves
        assert score.late_change(rising) == 2.0
    assert Score("x", log10=True).late_change(rising) == pytest.approx(math.log10(19 * 20 / (17 * 18)) / 2)
    assert Score("x").late_change(Curve(rounds, rounds, [0.0, 1.0] * 10)) == 0.0  # not that of two values
    flat = Curve(rounds, rounds, [0.0] * 10 + [1.0] * 10)
    assert Score("x").late_change(flat) == 0.0
    assert Score("x").late_change(Curve([20], [1], [0.5])) is None
    assert Score("x").late_change(Curve([5, 10, 20], [1, 2, 3], [0.25, 0.5, 1.0])) == 0.5  # none in the tenth before


@pytest.mark.parametrize(
    "metric", ["global.accuracy", "measures.score.mean.of", "scores", "measures.other", "measures"]
)
def test_metric_that_no_record_has_is_told(metric: str, tmp_path: Path) -> None:
    write(tmp_path, 10, [1.0])
    trial = Trial("dear", 0, entry().run("dear", 0, tmp_path), tmp_path)
    with pytest.raises(ValueError, match="no round has a score"):
        Score(metric).curve(trial)


@pytest.mark.parametrize(
    ("metric", "held_out", "kinds", "of"),
    [
        ("own.accuracy", False, ("clients",), "clients"),
        ("own.accuracy", False, ("personal",), "personal"),
        ("own.accuracy", False, ("clients", "fine_tuned"), "fine_tuned"),
        ("clients.accuracy", False, ("clients", "fine_tuned"), "clients"),
        ("own.accuracy", True, ("clients", "fine_tuned"), "fine_tuned"),
        ("own.accuracy", True, ("clients", "fine_tuned", "validation"), "validation"),
        ("global.accuracy", True, ("global", "clients", "fine_tuned"), "clients"),
    ],
)
def test_own_score_is_of_the_model_that_a_client_ends_with(
    metric: str, held_out: bool, kinds: Sequence[str], of: str, tmp_path: Path
) -> None:
    """That is the fine-tuned one where a run has such. Fine-tuned models have no scores on rows held out beside a
    client's test rows."""
    write(tmp_path, 10, [1.0])
    line = json.loads((tmp_path / "metrics.jsonl").read_text(encoding="utf-8"))
    scores = {kind: {"accuracy": {"mean": float(len(kind))}} for kind in kinds}
    (tmp_path / "metrics.jsonl").write_text(json.dumps({**line, "scores": scores}) + "\n", encoding="utf-8")
    trial = Trial("dear", 0, entry().run("dear", 0, tmp_path), tmp_path, held_out=held_out)
    assert Score(metric).of(trial) == len(of)


def test_logarithm_of_nothing_is_told(tmp_path: Path) -> None:
    write(tmp_path, 10, [0.0])
    trial = Trial("dear", 0, entry().run("dear", 0, tmp_path), tmp_path)
    with pytest.raises(ValueError, match="which has no logarithm"):
        Score("measures.score", log10=True).curve(trial)


def test_run_directory_is_a_single_name_whatever_the_arm(tmp_path: Path) -> None:
    config = entry().run("dear", 0, tmp_path)
    for arm in ("../up", "a/b", "half the rounds", "package.module:Class"):
        assert place(tmp_path, arm, 0, config).parent == tmp_path
