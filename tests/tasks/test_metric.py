"""``task.metric``: the metric by which a run shows progress, keeps its best round and ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rondo
from outcomes import told
from rondo.config import load
from rondo.config import task_kinds as table
from rondo.config.task_kinds import TABLE
from rondo.errors import Problem
from rondo.report.terminal import summary_table
from rondo.runs.watching.progress import round_line
from rondo.study.compare.table import comparison_table
from rondo.tasks.make import task_class
from small_runs import files, reviews, settings


@pytest.mark.parametrize("kind", TABLE)
def test_table_agrees_with_the_classes(kind: str) -> None:
    """The first metric is the class's own, and all are scores of an empty tally, in their names."""
    cls = task_class(kind)
    assert (cls.primary, cls.higher_is_better) == next(iter(TABLE[kind].metrics.items()))


def run(bert: Path, folder: Path, metric: str | None, **evaluation: Any) -> rondo.RunResult:
    config = settings(bert, task={"metric": metric}, rounds=4, evaluation=evaluation, train={"lr": 0.05})
    return rondo.run(config, train=reviews(48), test=reviews(24, seed=1), run_dir=folder / "run", device="cpu")


@pytest.mark.parametrize(("metric", "best"), [("matthews", max), pytest.param("loss", min, marks=pytest.mark.slow)])
def test_metric_of_a_run(bert: Path, tmp_path: Path, metric: str, best: Any) -> None:
    """It comes first in the records, and the best round is by it."""
    result = run(bert, tmp_path, metric)
    scores = [record["scores"]["global"] for record in result.history]
    assert [s for s in scores if next(iter(s)) != metric] == []
    assert result.summary["primary"] == metric
    assert result.summary["best"][metric] == best(s[metric] for s in scores)
    assert metric in result.metrics["clients"]
    assert next(iter(rondo.evaluate(result.run_dir, data=reviews(9), device="cpu")["test"])) == metric


def test_patience_goes_by_the_metric(bert: Path, tmp_path: Path) -> None:
    result = run(bert, tmp_path, "loss", patience=1)
    losses = [record["scores"]["global"]["loss"] for record in result.history]
    ends = next((i + 1 for i in range(1, 4) if losses[i] >= min(losses[:i])), 4)
    assert len(losses) == ends


def problems(task: dict[str, Any]) -> Iterator[Problem]:
    whole = rondo.config.schema.TaskConfig(**task).model_dump()
    return table.check(whole, own_data=False)


def test_unknown_metric_is_refused() -> None:
    (problem,) = problems({"metric": "pearson"})
    assert problem.path == "task.metric"
    known = "accuracy, f1, matthews, auc, loss"
    assert problem.message == f"a sequence-classification task has {known}, not 'pearson': take one of them"


def test_task_of_ones_own_names_its_metric_itself() -> None:
    (problem,) = problems({"kind": "own_task:Points", "metric": "loss"})
    assert problem.path == "task.metric"


def test_tables_records_and_card_say_whose_f1_it_is(bert: Path, tmp_path: Path) -> None:
    result = run(bert, tmp_path, "f1", positive="pos")
    title, titles = "f1 (pos)", {"f1": "f1 (pos)"}
    assert [record["titles"] for record in result.history] == [titles] * 4
    assert f"{title} {result.history[-1]['scores']['global']['f1']:.3f}" in round_line(result.history[-1], 4)
    assert result.summary["titles"] == titles
    labels = [row[0] for row in summary_table(result.summary).rows]
    assert f"global model, test set: {title}" in labels
    assert f"global model at the clients: mean {title}, 3 clients" in labels
    assert f"| global model, test set: {title} |" in (result.run_dir / "adapter" / "README.md").read_text("utf-8")
    for path in (result.run_dir, result.run_dir / "adapter"):
        again = rondo.evaluate(path, data=reviews(24, seed=1), device="cpu")
        assert again["titles"] == titles
        assert again["test"]["f1"] == pytest.approx(result.metrics["global"]["f1"])
    assert not [column for column in result.to_frame().columns if "titles" in column]


@pytest.mark.slow
def test_comparison_says_whose_f1_it_is(bert: Path, tmp_path: Path) -> None:
    data = files(tmp_path, reviews(24), reviews(12, seed=1))
    config = settings(bert, task={"metric": "f1"}, rounds=1, data=data)
    content = vars(rondo.compare(["fedit"], config, out=tmp_path / "out", device="cpu"))
    assert (content["primary"], content["title"]) == ("f1", "macro f1 (neg, pos)")
    assert "test macro f1 (neg, pos)" in comparison_table(content).columns


@pytest.mark.parametrize(
    ("positive", "message"),
    [("poss", "no class 'poss'; did you mean 'pos'?"), (True, "no class 'True'; there are: neg, pos")],
)
def test_unknown_class_is_refused(bert: Path, tmp_path: Path, positive: Any, message: str) -> None:
    assert told(lambda: run(bert, tmp_path, None, positive=positive)) == [("evaluation.positive", message)]


def test_means_over_classes_are_of_classifiers_and_of_all_classes() -> None:
    with pytest.raises(rondo.ConfigError, match=r"evaluation\.f1: .*(?s:.*)evaluation\.per_class: "):
        load({"task": {"kind": "causal-lm", "text": "t"}, "evaluation": {"f1": "macro", "per_class": True}})
    with pytest.raises(rondo.ConfigError, match=r"evaluation\.f1: a mean over all classes, and evaluation\.positive"):
        load({"task": {"text": "t", "label": "l"}, "evaluation": {"f1": "weighted", "positive": "a"}})


def test_number_names_a_class(bert: Path, tmp_path: Path) -> None:
    rows = [{**row, "label": int(row["label"] == "pos")} for row in reviews(24)]
    config = settings(bert, rounds=1)
    result = rondo.run(
        config, sets=["evaluation.positive=0"], train=rows, test=rows[:8], run_dir=tmp_path / "run", device="cpu"
    )
    assert result.summary["titles"] == {"f1": "f1 (0)"}


def test_tasks_without_classes_have_no_positive_class() -> None:
    with pytest.raises(rondo.ConfigError, match=r"evaluation\.positive.*'sequence-classification' and 'image-class"):
        load({"task": {"kind": "causal-lm", "text": "t"}, "evaluation": {"positive": "a"}})
