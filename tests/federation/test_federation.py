"""A federation over Flower and TLS equals its simulation, bit for bit: the same adapter and the same records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import safetensors.torch
import torch

import rondo
from parties import Parties, write_sites
from rondo.report import pictures
from small_runs import save_tiny_bert, settings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("federation")
    save_tiny_bert(path / "bert")
    write_sites(path)
    return path


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("partition", "curve"):
        monkeypatch.setattr(pictures, name, lambda *_: b"")


def config(folder: Path, **changes: Any) -> dict[str, Any]:
    own = {
        "data": {"test_source": str(folder / "data" / "test.csv"), "validation_fraction": 0.25},
        "partition": {"kind": None, "clients": None},
        "simulation": {"cohort": 1},
        "evaluation": {"clients_every": 1},
    }
    return settings(folder / "bert", **{**own, **changes})


def simulated(folder: Path, settings: dict[str, Any], run_dir: Path) -> rondo.RunResult:
    data = {**settings["data"], "clients_from": str(folder / "data" / "all")}
    return rondo.run({**settings, "data": data}, run_dir=run_dir, device="cpu")


def assert_equal(one: rondo.RunResult, other: rondo.RunResult) -> None:
    ours, theirs = (
        safetensors.torch.load_file(r.run_dir / "adapter" / "adapter_model.safetensors") for r in (one, other)
    )
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    for a, b in zip(one.history, other.history, strict=True):
        assert {k: v for k, v in a.items() if not k.endswith("seconds")} == {
            k: v for k, v in b.items() if not k.endswith("seconds")
        }


@pytest.mark.parametrize("name", ["fedit", "fedsa-lora"])
def test_federation_equals_the_simulation(folder: Path, tmp_path: Path, name: str) -> None:
    run = config(folder, algorithm={"name": name})
    expected = simulated(folder, run, tmp_path / "simulation")
    parties = Parties(folder)
    assert_equal(parties.run(run, tmp_path / "run"), expected)
    assert not parties.errors
