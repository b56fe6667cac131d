"""``task.metric``: the metric by which a run shows progress, keeps its best round and ends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rondo
from rondo.config import task_kinds as table
from rondo.config.task_kinds import TABLE
from rondo.errors import Problem
from rondo.tasks.make import task_class
from small_runs import reviews, save_tiny_bert, settings


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_bert(tmp_path_factory.mktemp("bert"))


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
