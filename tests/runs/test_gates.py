"""Runs whose layers have several pairs of factors and a router: resumed, in cohorts, exported where there is one
matrix, served where there is none, adapted to a new client, and refused with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import rondo
from rondo.algorithms.table import TABLE
from rondo.errors import ConfigError
from small_runs import reviews, save_tiny_bert, settings, stopped, write_rows

GATED = [name for name, entry in TABLE.items() if entry.traits.gated]


@pytest.fixture(scope="module", params=GATED)
def config(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("sources")
    return settings(
        save_tiny_bert(folder / "bert"),
        rounds=6,
        algorithm={"name": request.param},
        data={"source": str(write_rows(folder / "rows.csv", reviews(120)))},
        train={"batch_size": 4, "lr": 0.02, "local_epochs": 3, "precision": "exact"},
        evaluation={"clients_every": 1, "diagnostics_every": 1},
    )


@pytest.fixture(scope="module")
def finished(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> rondo.RunResult:
    return rondo.run(config, run_dir=tmp_path_factory.mktemp("run") / "run", device="cpu")


def kept(result: rondo.RunResult) -> dict[str, Tensor]:
    """All that is in the run's last checkpoint."""
    files = sorted((result.run_dir / "checkpoint").rglob("*.safetensors"))
    return {f"{f.name.partition('.')[0]} {n}": t for f in files for n, t in load_file(f).items()}


def test_clients_learn_and_the_record_says_what_is_not_measured(finished: rondo.RunResult) -> None:
    scores = [record["scores"]["personal"]["accuracy"]["mean"] for record in finished.history]
    assert scores[-1] > 0.8
    assert "router" in finished.history[-1]["diagnostics"]["reason"]


def test_stopped_run_goes_on_bit_for_bit(config: dict[str, Any], finished: rondo.RunResult, tmp_path: Path) -> None:
    again = rondo.resume(stopped(config, tmp_path / "run", at=4), device="cpu")
    one, other = kept(again), kept(finished)
    assert one.keys() == other.keys() != set()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def test_cohort_trains_as_its_clients_alone(config: dict[str, Any], tmp_path: Path) -> None:
    runs = [{**config, "rounds": 2, "simulation": {"cohort": size}} for size in (1, 3)]
    one, other = (kept(rondo.run(run, run_dir=tmp_path / str(i), device="cpu")) for i, run in enumerate(runs))
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=1e-3, msg=name)


@pytest.mark.parametrize("merged", [False, True])
def test_newcomers_model_is_what_stock_peft_reads(finished: rondo.RunResult, merged: bool, tmp_path: Path) -> None:
    made = rondo.export(finished.run_dir, tmp_path / "out", merged=merged, verify=True)
    assert made.rank == (0 if merged else 2) or merged
    assert made.verification is not None
    assert made.verification.passed


def test_clients_model_is_served_and_not_written(finished: rondo.RunResult, tmp_path: Path) -> None:
    client = "client-0"
    with pytest.raises(ConfigError, match=r"--client: a router weighs several pairs .*rondo predict --client"):
        rondo.export(finished.run_dir, tmp_path / "out", client=client)
    rows = reviews(20, seed=5)
    predicted = rondo.predict(finished.run_dir, rows, client=client, device="cpu")
    scores = rondo.evaluate(finished.run_dir, data=rows, client=client, device="cpu")
    with pytest.raises(ConfigError, match="--client: the folder has one model; name the run directory"):
        rondo.predict(finished.run_dir / "adapter", rows, client=client, device="cpu")
    right = sum(one["label"] == row["label"] for one, row in zip(predicted, rows, strict=True))
    assert scores["test"]["accuracy"] == pytest.approx(right / len(rows))
    assert right > 18


def test_new_client_is_fitted_and_scored(finished: rondo.RunResult, tmp_path: Path) -> None:
    adapted = rondo.adapt(finished.run_dir, reviews(20, seed=5), device="cpu")
    assert adapted.shots[0].adapted["loss"] < adapted.cold_start["loss"]
    with pytest.raises(ConfigError, match="--to: a router weighs several pairs"):
        rondo.adapt(finished.run_dir, reviews(20, seed=5), to=tmp_path / "out", device="cpu")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": {"what": ["*.bias"]}}, "whole tensors are trained beside, where a layer has one matrix"),
        (
            {"adapter": {"r": 2, "target_modules": ["conv1"]}, "model": {"name": "builtin:resnet10"}},
            "it adapts a convolution, which has no tokens to weigh them for",
        ),
    ],
)
def test_networks_without_pairs_are_refused(
    config: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    of_pictures = {
        "rounds": 1,
        "algorithm": config["algorithm"],
        "model": {"name": "builtin:mlp"},
        "task": {"kind": "image-classification"},
        "adapter": {"r": 2},
        "data": {"source": "builtin:digits", "max_train_rows": 120},
        "partition": {"kind": "iid", "clients": 2},
    }
    with pytest.raises(ConfigError, match=rf"algorithm\.name: .* several pairs of factors in a layer.*{message}"):
        rondo.run({**of_pictures, **changes}, run_dir=tmp_path / "run", device="cpu")


def test_layer_without_tokens_weighs_for_each_row(config: dict[str, Any], tmp_path: Path) -> None:
    """A network of one's own whose factors alone are trained; its newcomer's model is plain weights."""
    of_pictures = {
        "rounds": 2,
        "algorithm": config["algorithm"],
        "model": {"name": "builtin:mlp"},
        "task": {"kind": "image-classification"},
        "adapter": {"r": 2},
        "data": {"source": "builtin:digits", "max_train_rows": 120},
        "partition": {"kind": "iid", "clients": 2},
    }
    result = rondo.run(of_pictures, run_dir=tmp_path / "run", device="cpu")
    made = rondo.export(result.run_dir, tmp_path / "out", verify=True)
    assert made.verification is not None
    assert made.verification.max_difference < 1e-4
