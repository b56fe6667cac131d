"""Regression: scores equal scikit-learn's, rows that are no numbers are refused, a line is learned."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rondo
from outcomes import problems
from rondo.config.inputs import TaskConfig
from rondo.tasks.numbers.regression import Regression

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))

TASK = Regression(("a", "b", "c"), "y")
KEYS = TaskConfig(kind="regression", features=["a", "b", "c"], target="y")


def lines(count: int) -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    points = draw.normal(size=(count, 3))
    return [{"a": a, "b": str(b), "c": c, "y": 2 * a - b + 0.5 * c} for a, b, c in points.tolist()]


def test_scores_equal_scikit_learns() -> None:
    from sklearn import metrics

    draw = torch.Generator().manual_seed(0)
    y, output = torch.randn(50, generator=draw), torch.randn(50, 1, generator=draw)
    tally = TASK.tally()
    for part in (slice(0, 7), slice(7, 50)):
        tally.add(output[part], {"y": y[part]})
    scores = tally.scores()
    assert list(scores) == ["r2", "rmse", "mae", "examples"]
    assert scores["r2"] == pytest.approx(metrics.r2_score(y, output), rel=1e-6)
    assert scores["rmse"] == pytest.approx(metrics.root_mean_squared_error(y, output), rel=1e-6)
    assert scores["mae"] == pytest.approx(metrics.mean_absolute_error(y, output), rel=1e-6)


def test_undefined_scores_are_none() -> None:
    tally = TASK.tally()
    assert tally.scores()["r2"] is None
    tally.add(torch.tensor([1.0, 2.0]), {"y": torch.tensor([3.0, 3.0])})
    assert tally.scores()["r2"] is None
    assert tally.scores()["mae"] == 1.5


@pytest.mark.parametrize("value", ["", "two", None, "nan", float("inf"), [1.0], True, 10**400])
def test_value_that_is_no_number_is_refused(value: Any) -> None:
    row = {**lines(1)[0], "b": value}
    problem = Regression.problem(KEYS, row, 3)
    assert str(problem).startswith("row 3 (counted from 0), column 'b': expected a finite number, got ")


def test_line_is_learned(tmp_path: Path) -> None:
    config = {
        "rounds": 8,
        "algorithm": {"name": "own_task:FedAvg"},
        "model": {"name": "own_task:Line"},
        "task": {"kind": "regression", "features": ["a", "b", "c"], "target": "y"},
        "data": {"test_split": ""},
        "partition": {"kind": "iid", "clients": 3},
        "train": {"lr": 0.2, "batch_size": 8},
    }

    result = rondo.run(config, train=lines(90), test=lines(120)[90:], run_dir=tmp_path / "run")
    assert result.summary["after"]["global"]["r2"] > 0.99


def test_regression_needs_its_columns(tmp_path: Path) -> None:
    config = {"task": {"kind": "regression"}, "model": {"name": "own_task:Line"}, "partition": {"clients": 2}}
    found = problems(lambda: rondo.run(config, run_dir=tmp_path / "run"))
    assert found.keys() == {"task.features", "task.target", "data.source"}
