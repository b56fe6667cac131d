"""``data.more_tests``: further test sets, scored beside the first (MNLI matched and mismatched)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rondo
from outcomes import adapter
from rondo.config.load import load
from rondo.federation.server.remote_run import check
from rondo.report.numbers import plus_minus
from rondo.report.terminal import score_rows
from rondo.runs.watching.result import RunResult
from rondo.study.compare.table import comparison_table
from small_runs import reviews, save_tiny_bert, settings, write_rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, and a folder of splits."""
    folder = tmp_path_factory.mktemp("mnli")
    save_tiny_bert(folder / "bert")
    for seed, name in enumerate(("train", "validation_matched", "validation_mismatched", "other")):
        write_rows(folder / "data" / f"{name}.csv", reviews(48 if name == "train" else 12 + 2 * seed, seed))
    return folder


def config(folder: Path, **data: Any) -> dict[str, Any]:
    source = {"source": str(folder / "data"), "test_split": "validation_matched"}
    return settings(folder / "bert", data={**source, **data}, train={"precision": "exact"})


MORE = {"mismatched": "validation_mismatched"}


@pytest.fixture(scope="module")
def finished(folder: Path) -> RunResult:
    """A finished run; do not write into its directory."""
    more = {**MORE, "file": str(folder / "data" / "other.csv")}
    return rondo.run(config(folder, more_tests=more), run_dir=folder / "run", device="cpu")


def test_scores_stand_beside_those_of_the_test_set(finished: RunResult, folder: Path) -> None:
    """In every record, in the final table and by evaluate; equal to those of the file scored alone."""
    for record in finished.history:
        assert set(record["scores"]) >= {"global", "more_tests"}
    more = finished.metrics["more_tests"]
    assert {name: scores["examples"] for name, scores in more.items()} == {"mismatched": 16, "file": 18}
    evaluated = rondo.evaluate(finished.run_dir, device="cpu")
    assert evaluated == {"test": finished.metrics["global"], **more, "titles": finished.summary["titles"]}
    alone = rondo.evaluate(finished.run_dir, data=folder / "data" / "validation_mismatched.csv", device="cpu")
    assert alone["test"] == more["mismatched"]
    labels = {label for label, _, _ in score_rows(finished.summary)}
    assert "global model, test set mismatched: accuracy" in labels
    assert "mismatched: accuracy" in (finished.run_dir / "adapter" / "README.md").read_text()


@pytest.mark.slow
def test_comparison_has_a_column_of_each(folder: Path, tmp_path: Path) -> None:
    """RoLoRA's Table 3 has eight test sets to a method, MNLI two."""
    compared = rondo.compare(["fedit"], config(folder, more_tests=MORE), seeds=[0, 1], out=tmp_path, device="cpu")
    after = [json.loads((tmp_path / r["run_dir"] / "summary.json").read_text())["after"] for r in compared.runs]
    scores = [scores["more_tests"]["mismatched"]["accuracy"] for scores in after]
    assert [r["more_tests"] for r in compared.runs] == [{"mismatched": {"model": "global", "score": s}} for s in scores]
    stats_of = compared.algorithms["fedit"]
    stats = stats_of["more_tests"]["mismatched"]
    assert (stats["mean"], stats["count"], stats["model"]) == (pytest.approx(sum(scores) / 2), 2, "global")
    frame = compared.to_frame()
    assert list(frame["more_tests.mismatched"]) == scores
    assert set(frame["more_tests.mismatched_model"]) == {"global"}
    content = json.loads((tmp_path / "comparison.json").read_text())
    table = comparison_table(content)
    column = table.columns.index("mismatched accuracy")
    assert table.rows[0][column] == plus_minus(stats["mean"], stats["sd"])
    assert "mismatched accuracy" in (tmp_path / "comparison.tex").read_text()
    content["algorithms"]["other"] = {**stats_of, "more_tests": {}}  # --vary can name other test sets
    assert [row[column] for row in comparison_table(content).rows][1:] == ["-"]


def test_no_bit_of_the_result_depends_on_them(finished: RunResult, folder: Path, tmp_path: Path) -> None:
    without = rondo.run(config(folder), run_dir=tmp_path / "run", device="cpu")
    assert adapter(without.run_dir) == adapter(finished.run_dir)
    assert finished.summary["best"] == without.summary["best"]


def test_account_of_the_rows(finished: RunResult, folder: Path) -> None:
    partition = json.loads((finished.run_dir / "partition.json").read_text())
    assert partition["test_rows_used"] == 14
    assert partition["more_tests"]["mismatched"]["rows_used"] == 16
    assert partition["more_tests"]["mismatched"]["labels"] == {"neg": 8, "pos": 8}


def test_changed_test_set_is_noticed(folder: Path, tmp_path: Path) -> None:
    changing = write_rows(tmp_path / "more.csv", reviews(10, seed=7))
    result = rondo.run(config(folder, more_tests={"more": str(changing)}), run_dir=tmp_path / "run", device="cpu")
    write_rows(changing, reviews(10, seed=8))
    with pytest.raises(rondo.ConfigError, match="more_tests"):
        rondo.evaluate(result.run_dir, device="cpu")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"mis matched": "other"}, "'mis matched' cannot name a test set"),
        ({"test": "other"}, "'test' cannot name a test set"),
        ({"a": "no-such-split"}, "no 'no-such-split' file"),
        ({"a": "no-such-file.csv"}, "no such file or folder"),
    ],
)
def test_faults_are_refused(folder: Path, tmp_path: Path, more: dict[str, str], message: str) -> None:
    with pytest.raises(rondo.ConfigError, match=message):
        rondo.run(config(folder, more_tests=more), run_dir=tmp_path / "run", device="cpu")


def test_bad_row_is_named_by_its_test_set(folder: Path, tmp_path: Path) -> None:
    bad = write_rows(tmp_path / "bad.csv", [{**reviews(1)[0], "label": "what"}])
    with pytest.raises(rondo.ConfigError, match=r"bad\.csv, line 2, column 'label': unknown label 'what'"):
        rondo.run(config(folder, more_tests={"more": str(bad)}), run_dir=tmp_path / "run", device="cpu")


def test_without_a_test_set_they_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(rondo.ConfigError, match="stand beside a test set"):
        rondo.run(config(folder, more_tests=MORE, test_split=""), run_dir=tmp_path / "run", device="cpu")


def test_split_of_a_single_file_is_refused(folder: Path, tmp_path: Path) -> None:
    data = {"source": str(folder / "data" / "train.csv"), "test_source": str(folder / "data" / "other.csv")}
    with pytest.raises(rondo.ConfigError, match="the rows have no splits, so name a file"):
        rondo.run(config(folder, more_tests=MORE, **data), run_dir=tmp_path / "run", device="cpu")


def test_server_without_rows_takes_files_only(folder: Path) -> None:
    elsewhere = {"source": None, "test_source": "t.csv", "clients_from": "at its sites"}
    check(load(config(folder, more_tests={"a": "b.csv"}, **elsewhere), check_paths=False))
    with pytest.raises(rondo.ConfigError, match="the server has files, and no splits"):
        check(load(config(folder, more_tests=MORE, **elsewhere), check_paths=False))
