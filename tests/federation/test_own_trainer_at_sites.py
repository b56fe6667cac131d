"""A trainer of the user's own at sites: the federation equals its simulation, and a contract must allow the code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from parties import OPEN, Parties, configuration, write_sites

import rondo
from rondo.config import load
from rondo.federation.site.contract.terms import of_code
from small_runs import save_tiny_bert

ALLOWED = OPEN.model_copy(update={"training": OPEN.training.model_copy(update={"allow_code": True})})


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "runs"))
    write_sites(tmp_path)
    save_tiny_bert(tmp_path / "bert")
    return configuration(tmp_path, train={"lr": 0.1, "local_epochs": 1, "trainer": "own_trainers:looking"})


def test_federation_equals_the_simulation(config: dict[str, Any], tmp_path: Path) -> None:
    data = {**config["data"], "clients_from": str(tmp_path / "data" / "all")}
    expected = rondo.run({**config, "data": data}, run_dir=tmp_path / "simulation", device="cpu")
    parties = Parties(tmp_path, state=tmp_path / "state", options={"contract": ALLOWED})
    result = parties.run(config, tmp_path / "run")
    assert not parties.errors
    adapters = [(r.run_dir / "adapter" / "adapter_model.safetensors").read_bytes() for r in (expected, result)]
    assert adapters[0] == adapters[1]
    assert [r["scores"] for r in result.history] == [r["scores"] for r in expected.history]


def test_contract_must_allow_the_code(config: dict[str, Any]) -> None:
    """Those of Rondo are not code of one's own."""
    own = load(config, ("data.source=", 'data.clients_from="sites"'), check_paths=False)
    assert "train.trainer = own_trainers:looking" in of_code(own, OPEN).reason
    assert of_code(own, ALLOWED).kept
    ready_made = own.model_copy(update={"train": own.train.model_copy(update={"trainer": "transformers"})})
    assert of_code(ready_made, OPEN).kept
