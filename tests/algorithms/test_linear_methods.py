"""The methods for linear problems, run by the engine, against NumPy written from the papers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

import rondo
from rondo.config.section import ProblemConfig
from rondo.tasks.numbers.linear_problem import LinearProblem

SEED, LR = 3, 0.2
Array = NDArray[np.float64]


def run(algorithm: dict[str, Any], problem: dict[str, Any], rounds: int, folder: Path, **clients: Any) -> Any:
    raw = {
        "seed": SEED,
        "rounds": rounds,
        "algorithm": algorithm,
        "model": {"name": "builtin:linear"},
        "task": {"kind": "linear"},
        "data": {"source": "builtin:linear", "validation_fraction": 0.0},
        "problem": problem,
        "clients": {"weighting": "uniform", **clients},
        "train": {"optimizer": "sgd", "lr": LR, "batch_size": problem["rows"], "max_grad_norm": 0.0},
    }
    return rondo.run(raw, run_dir=folder, device="cpu")


def drawn(problem: dict[str, Any]) -> tuple[LinearProblem, list[tuple[Array, Array]]]:
    """The problem and the X and Y of each client, from the rows that the run has."""
    linear = LinearProblem.draw(ProblemConfig(**problem), SEED)
    data: dict[str, list[tuple[list[float], list[float]]]] = {}
    for row in linear.rows():
        data.setdefault(row["client"], []).append((row["x"], row["y"]))
    return linear, [(np.array([x for x, _ in rows]), np.array([y for _, y in rows])) for rows in data.values()]


def result(folder: Path) -> dict[str, Array]:
    return load_file(folder / "adapter" / "tensors.safetensors")


FACTORS = {"kind": "factors", "clients": 4, "rows": 9, "inputs": 5, "outputs": 3, "spread": 0.5, "noise": 0.1}


def exact_b(a: Array, x: Array, y: Array) -> Array:
    """argmin_b |Y - X a b^T|^2 (RoLoRA, equation 139)."""
    return (y.T @ x @ a) / (a @ x.T @ x @ a)


def test_rolora_linear_is_algorithm_2(tmp_path: Path) -> None:
    problem, data = drawn(FACTORS)
    history = run({"name": "rolora-linear"}, FACTORS, 6, tmp_path / "run").history
    a, truth = problem.start.numpy()[0], problem.down.numpy()[0]
    distance = np.linalg.norm(truth - a * (a @ truth))
    for iteration in range(3):
        b = np.mean([exact_b(a, x, y) for x, y in data], axis=0)
        gradient = np.mean([2 / len(x) * x.T @ (np.outer(x @ a, b) - y) @ b for x, y in data], axis=0)
        a = a - LR * gradient
        a /= np.linalg.norm(a)
        before, distance = distance, np.linalg.norm(truth - a * (a @ truth))
        measures = history[2 * iteration + 1]["measures"]
        assert measures["angle_distance"] == pytest.approx(distance, abs=1e-12)
        assert measures["factor"] == pytest.approx(distance / before, abs=1e-11)
        loss = np.mean([((np.outer(x @ a, b) - y) ** 2).sum(1).mean() for x, y in data])
        assert measures["global_loss"] == pytest.approx(loss, abs=1e-12)
        assert history[2 * iteration]["measures"]["factor"] == pytest.approx(1, abs=1e-12)
    final = result(tmp_path / "run")
    np.testing.assert_allclose(final["linear.A"][0], a, atol=1e-12)
    np.testing.assert_allclose(final["linear.B"][:, 0], b, atol=1e-12)


def test_ffa_linear_is_the_freezing_scheme(tmp_path: Path) -> None:
    problem, data = drawn(FACTORS)
    history = run({"name": "ffa-linear"}, FACTORS, 2, tmp_path / "run").history
    a = problem.start.numpy()[0]
    final = result(tmp_path / "run")
    np.testing.assert_array_equal(final["linear.A"][0], a)
    np.testing.assert_allclose(
        final["linear.B"][:, 0], np.mean([exact_b(a, x, y) for x, y in data], axis=0), atol=1e-12
    )
    assert [r["measures"]["factor"] for r in history] == [1, 1]


HEADS = {"kind": "heads", "clients": 6, "rows": 7, "inputs": 5, "rank": 2, "noise": 0.03}


def moments_start(data: list[tuple[Array, Array]], rank: int) -> Array:
    """U of the rank-k SVD of the mean of Z_i, with the entry of largest magnitude of each column positive."""
    z = np.mean([np.mean([t**2 * np.outer(r, r) for r, t in zip(x, y[:, 0], strict=True)], axis=0) for x, y in data], 0)
    u = np.linalg.svd(z)[0][:, :rank]
    return u * np.sign(u[np.abs(u).argmax(0), range(rank)])


def qr(b: Array) -> Array:
    q, r = np.linalg.qr(b)
    return q * np.sign(np.diag(r))


def principal_angle(b: Array, truth: Array) -> float:
    """|| B1_perp^T B2 ||_2 (FedRep, definition 1)."""
    complement = np.linalg.svd(b)[0][:, b.shape[1] :]
    return float(np.linalg.norm(complement.T @ truth, 2))


@pytest.mark.parametrize("head_steps", [0, 1, 3])
def test_fedrep_linear_is_algorithm_2(head_steps: int, tmp_path: Path) -> None:
    """Without head steps FedRep, with one GD-GD."""
    problem, data = drawn(HEADS)
    method = {"name": "fedrep-linear", "head_steps": head_steps}
    history = run(method, HEADS, 4, tmp_path / "run").history
    b, truth = moments_start(data, 2), problem.down.numpy().T
    assert history[0]["measures"]["principal_angle"] == pytest.approx(principal_angle(b, truth), abs=1e-12)
    heads = [np.zeros(2) for _ in data]
    for index in range(1, 4):
        moved = []
        for k, (x, y) in enumerate(data):
            features, t = x @ b, y[:, 0]
            if head_steps == 0:
                heads[k] = np.linalg.lstsq(features, t, rcond=None)[0]
            for _ in range(head_steps):
                heads[k] = heads[k] - LR / len(x) * features.T @ (features @ heads[k] - t)
            moved.append(b - LR / len(x) * x.T @ np.outer(features @ heads[k] - t, heads[k]))
        b = qr(np.mean(moved, axis=0))
        measures = history[index]["measures"]
        assert measures["principal_angle"] == pytest.approx(principal_angle(b, truth), abs=1e-12)
        losses = [np.linalg.lstsq(x @ b, y[:, 0], rcond=None)[1][0] / len(x) for x, y in data]
        assert measures["global_loss"] == pytest.approx(np.mean(losses) / 2, abs=1e-12)
    np.testing.assert_allclose(result(tmp_path / "run")["representation.weight"], b.T, atol=1e-12)


def test_moments_of_several_rounds_are_averaged(tmp_path: Path) -> None:
    method = {"name": "fedrep-linear", "start_rounds": 3}
    history = run(method, HEADS, 4, tmp_path / "run", per_round=2).history
    angles = [r["measures"]["principal_angle"] for r in history]
    assert angles[0] == angles[1] != angles[2] != angles[3]
    assert {r["bytes_up"] for r in history[:3]} == {2 * 25 * 8}
    assert history[3]["bytes_up"] == 2 * 10 * 8


def test_given_start_is_used(tmp_path: Path) -> None:
    problem, _ = drawn(HEADS)
    summary = run({"name": "fedrep-linear", "start": "given"}, HEADS, 1, tmp_path / "run").summary
    angle = principal_angle(problem.start.numpy().T, problem.down.numpy().T)
    assert summary["measures"]["before"]["principal_angle"] == pytest.approx(angle, abs=1e-12)
    assert summary["measures"]["after"]["principal_angle"] != pytest.approx(angle, abs=1e-3)
