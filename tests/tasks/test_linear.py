"""Linear problems as tasks: their data, their measures, and what does not go together."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import rondo
from outcomes import problems
from rondo.config import load
from rondo.config.section import ProblemConfig
from rondo.tasks.numbers.linear import LinearRegression, largest_sine
from rondo.tasks.numbers.linear_problem import LinearProblem
from small_runs import dying


def raw(**sections: Any) -> dict[str, Any]:
    base: dict[str, Any] = {
        "rounds": 4,
        "algorithm": {"name": "rolora-linear"},
        "model": {"name": "builtin:linear"},
        "task": {"kind": "linear"},
        "data": {"source": "builtin:linear", "validation_fraction": 0.0},
        "problem": {"clients": 3, "rows": 8, "inputs": 4, "noise": 0.1},
        "train": {"optimizer": "sgd", "lr": 0.2, "max_grad_norm": 0.0},
    }
    return {**base, **{k: {**base[k], **v} if isinstance(v, dict) and k in base else v for k, v in sections.items()}}


def test_problem_is_as_described() -> None:
    factors = LinearProblem.draw(ProblemConfig(inputs=6, outputs=4, clients=5, spread=0.7, start_distance=0.3), 1)
    mean = factors.up.mean(0)
    assert float(mean.norm()) == pytest.approx(1)
    assert float((factors.up - mean).square().sum((1, 2)).mean().sqrt()) == pytest.approx(0.7)
    assert float(factors.down.norm()) == pytest.approx(1)
    assert largest_sine(factors.start, factors.down) == pytest.approx(0.3)
    heads = LinearProblem.draw(ProblemConfig(kind="heads", inputs=6, rank=2, clients=5), 1)
    torch.testing.assert_close(heads.down @ heads.down.mT, torch.eye(2).double())
    torch.testing.assert_close(heads.up[:, 0].mT @ heads.up[:, 0], 5 * torch.eye(2).double())
    apart = LinearProblem.draw(ProblemConfig(kind="heads", inputs=6, rank=3, clients=5, start_distance=0.8), 1)
    torch.testing.assert_close(apart.start @ apart.start.mT, torch.eye(3).double())
    sines = 1 - torch.linalg.svdvals(apart.start @ apart.down.mT).square()
    torch.testing.assert_close(sines, torch.full((3,), 0.64).double())
    even = LinearProblem.draw(ProblemConfig(inputs=4, rows=9, design="isotropic"), 1)
    torch.testing.assert_close(even.inputs(2).mT @ even.inputs(2), 9 * torch.eye(4).double())


def test_one_client_is_its_own_mean() -> None:
    alone = LinearProblem.draw(ProblemConfig(clients=1, spread=0.7), 1)
    assert float(alone.up.norm()) == pytest.approx(1)


def test_losses_are_those_of_the_rows() -> None:
    problem = LinearProblem.draw(ProblemConfig(inputs=4, outputs=2, clients=3, rows=7, noise=0.5, spread=1.0), 2)
    slope = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = problem.rows()
    for k, loss in enumerate(problem.losses(slope)):
        own = [row for row in rows if row["client"] == f"client-{k}"]
        x, y = (torch.tensor([row[c] for row in own], dtype=torch.float64) for c in "xy")
        assert float(loss) == pytest.approx(float((x @ slope - y).square().sum(1).mean()), rel=1e-12)


def test_newcomer_error_is_that_of_each_ones_exact_head() -> None:
    """FedRep, section 5.1: the new client solves for the head on its rows; its error is taken over further inputs."""
    problem = LinearProblem.draw(ProblemConfig(kind="heads", inputs=8, rank=2, clients=5, noise=0.1), 3)
    x, y, slopes = (part.numpy() for part in problem.newcomers)
    assert (x.shape, y.shape, slopes.shape) == ((100, 4, 8), (100, 4, 1), (100, 8, 1))
    assert np.abs(slopes - problem.down.numpy().T @ (problem.down.numpy() @ slopes)).max() < 1e-12
    rows = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 2)))[0].T
    fresh = np.random.default_rng(1).standard_normal((20_000, 8))
    for representation in (rows, problem.down.numpy()):
        errors, sampled = [], []
        for k in range(100):
            head = np.linalg.lstsq(x[k] @ representation.T, y[k], rcond=None)[0]
            off = representation.T @ head - slopes[k]
            errors.append(float((off**2).sum()))
            sampled.append(float(((fresh @ off) ** 2).mean()))
        error = problem.newcomer_error(torch.from_numpy(np.ascontiguousarray(representation)))
        assert error == pytest.approx(sorted(errors)[49], rel=1e-9)
        assert error == pytest.approx(sorted(sampled)[49], rel=0.05)
    assert problem.newcomer_error(problem.down) < 0.05 < problem.newcomer_error(torch.from_numpy(rows.copy()))
    exact = LinearProblem.draw(ProblemConfig(kind="heads", inputs=8, rank=2, clients=5, noise=0.0), 3)
    assert exact.newcomer_error(exact.down) < 1e-20


@pytest.mark.parametrize(("kind", "factor"), [(None, 1.0), ("factors", 1.0), ("heads", 0.5)])
def test_loss_of_a_row_is_as_its_paper_writes_it(kind: Any, factor: float) -> None:
    task = LinearRegression(None if kind is None else LinearProblem.draw(ProblemConfig(kind=kind), 0))
    y = torch.tensor([[1.0, 2.0], [0.0, -1.0]], dtype=torch.float64)
    losses, counts = task.loss(torch.zeros_like(y), {"y": y})
    assert (losses.tolist(), counts.tolist()) == ([5 * factor, factor], [1, 1])


def test_small_angle_keeps_its_digits() -> None:
    a = torch.zeros(1, 5, dtype=torch.float64)
    a[0, 0] = 1
    b = a.clone()
    b[0, 3] = 1e-12
    assert largest_sine(a, b) == pytest.approx(1e-12, rel=1e-6)


def test_killed_run_resumes_to_the_same_measures(tmp_path: Path) -> None:
    whole = rondo.run(raw(), run_dir=tmp_path / "whole", device="cpu")
    with pytest.raises(KeyboardInterrupt):
        rondo.run(raw(), run_dir=tmp_path / "cut", device="cpu", observer=dying(2))
    resumed = rondo.resume(tmp_path / "cut")
    assert [r["measures"] for r in resumed.history] == [r["measures"] for r in whole.history]
    assert resumed.summary["measures"] == whole.summary["measures"]
    assert set(whole.history[0]["measures"]) == {"angle_distance", "factor", "global_loss"}


def test_cohorts_give_the_same_tensors(tmp_path: Path) -> None:
    results = []
    for cohort in (1, 2, "auto"):
        folder = tmp_path / str(cohort)
        rondo.run(raw(simulation={"cohort": cohort}), run_dir=folder, device="cpu")
        results.append(load_file(folder / "adapter" / "tensors.safetensors"))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=0, atol=1e-13)


def test_personal_heads_survive_a_kill(tmp_path: Path) -> None:
    config = raw(algorithm={"name": "fedrep-linear"}, problem={"kind": "heads", "rank": 2, "clients": 4})
    whole = rondo.run(config, run_dir=tmp_path / "whole", device="cpu")
    cut = rondo.run(config, sets=["rounds=2"], run_dir=tmp_path / "short", device="cpu")
    assert [r["measures"] for r in cut.history] == [r["measures"] for r in whole.history[:2]]
    assert rondo.evaluate(tmp_path / "whole", client="client-1", device="cpu")["validation"]["examples"] == 0


@pytest.mark.parametrize("name", ["rolora", "fedit", "ffa-lora", "flora", "fedex-lora", "florg"])
def test_methods_for_factors_run_on_the_problem(name: str, tmp_path: Path) -> None:
    config = raw(algorithm={"name": name}, train={"lr": 0.05, "local_steps": 2}, problem={"start_distance": 0.5})
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    assert [r for r in result.history if r["skipped"] is not None] == []
    losses = [result.summary["measures"][when]["global_loss"] for when in ("before", "after")]
    assert losses[1] < losses[0]


def test_own_rows_need_no_truth(tmp_path: Path) -> None:
    rows = LinearProblem.draw(ProblemConfig(inputs=4, clients=3, rows=8), 0).rows()
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps({"x": r["x"], "y": r["y"]}) for r in rows))
    config = raw(data={"source": str(file)}, partition={"kind": "iid", "clients": 3}, train={"batch_size": 8})
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    assert [r["measures"] for r in result.history] == [{}] * 4
    assert result.history[-1]["loss"] < result.history[0]["loss"] + 1


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"x": "1,2", "y": [1.0]}, "column 'x': expected a list of numbers, got '1,2'"),
        ({"x": [], "y": [1.0]}, "column 'x': expected a list of numbers"),
        ({"x": [1.0, "a"], "y": [1.0]}, "column 'x': not a finite number: 'a'"),
        ({"x": [1.0, 2.0], "y": [math.nan]}, "column 'y': not a finite number: nan"),
        ({"x": [10**400], "y": [1.0]}, "column 'x': not a finite number: 1000"),
        ({"x": [True], "y": [1.0]}, "column 'x': not a finite number: True"),
        ({"x": [1.0, 2.0]}, "column 'y': expected a list of numbers, got None"),
    ],
)
def test_bad_row_is_told(row: dict[str, Any], reason: str) -> None:
    assert reason in str(LinearRegression.problem(load(raw()).task, row, 0))
    assert LinearRegression.problem(load(raw()).task, {"x": [1, 2.5], "y": (3,)}, 0) is None


def test_rows_of_several_sizes_are_told(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"x": [1, 2, 3, 4], "y": [1]}\n{"x": [1, 2], "y": [1]}\n')
    config = raw(data={"source": str(file)}, partition={"kind": "iid", "clients": 2})
    with pytest.raises(rondo.ConfigError, match="rows have 2 and 4 numbers in column 'x'"):
        rondo.run(config, run_dir=tmp_path / "run", device="cpu")


@pytest.mark.parametrize(
    ("sections", "path", "words"),
    [
        ({"problem": {"rank": 5}}, "problem.rank", "above 4"),
        ({"problem": {"kind": "heads", "spread": 1.0}}, "problem.spread", "only kind = 'factors'"),
        ({"problem": {"kind": "heads", "rank": 4}}, "problem.clients", "fewer than rank = 4"),
        ({"problem": {"design": "isotropic", "rows": 3}}, "problem.rows", "as many rows as inputs"),
        ({"problem": {"rank": 3, "start_distance": 0.5}}, "problem.start_distance", "have no room for rank = 3"),
        ({"model": {"name": "builtin:minilm"}}, "model.name", "kind = 'linear' needs 'builtin:linear'"),
        ({"task": {"kind": "regression"}}, "model.name", "is a network for task.kind = 'linear'"),
        ({"task": {"label": "y"}}, "task.label", "remove it"),
    ],
)
def test_contradiction_is_told(sections: dict[str, Any], path: str, words: str) -> None:
    assert words in problems(lambda: load(raw(**sections)))[path]


@pytest.mark.parametrize(
    ("sections", "path", "words"),
    [
        ({"train": {"optimizer": "adamw"}}, "train.optimizer", "a step down the gradient"),
        ({"train": {"max_grad_norm": 1.0}}, "train.max_grad_norm", "nothing else"),
        ({"train": {"batch_size": 7}}, "train.batch_size", "raise it to 8"),
        ({"algorithm": {"name": "fedrep-linear"}}, "algorithm.name", "this network has no task head"),
        ({"problem": {"kind": "heads"}}, "algorithm.name", "low-rank factors"),
        ({"adapter": {"r": 4}}, "adapter", "does not use this section"),
        ({"train": {"what": "head"}}, "train.what", "trains all of its tensors"),
    ],
)
def test_run_that_cannot_be_is_told(sections: dict[str, Any], path: str, words: str, tmp_path: Path) -> None:
    assert words in problems(lambda: rondo.run(raw(**sections), run_dir=tmp_path / "run", device="cpu"))[path]
    assert not (tmp_path / "run").exists()


def test_exact_method_needs_least_squares(tmp_path: Path) -> None:
    config = {
        "algorithm": {"name": "rolora-linear"},
        "task": {"kind": "image-classification"},
        "model": {"name": "builtin:mlp"},
        "partition": {"kind": "iid", "clients": 2},
        "train": {"optimizer": "sgd", "max_grad_norm": 0.0},
    }
    with pytest.raises(rondo.ConfigError, match="a squared error exactly, and image-classification has another loss"):
        rondo.run(config, run_dir=tmp_path / "run", device="cpu")


def test_clients_of_the_moment_rounds_have_not_failed(tmp_path: Path) -> None:
    """They send an upload without a training step, so they have no loss."""

    class Watcher(rondo.Observer):
        def __init__(self) -> None:
            self.done: list[float | None] = []

        def client_done(self, client: str, loss: float | None) -> None:
            self.done.append(loss)

        def client_failed(self, client: str) -> None:
            raise AssertionError(f"{client} has not failed")

    watcher = Watcher()
    config = raw(algorithm={"name": "fedrep-linear"}, problem={"kind": "heads"}, rounds=2)
    rondo.run(config, run_dir=tmp_path / "run", device="cpu", observer=watcher)
    assert watcher.done[:3] == [None] * 3
    assert None not in watcher.done[3:]
