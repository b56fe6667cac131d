"""Layers with magnitudes (DoRA) at three sites: the federation equals its simulation, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("flwr")

from parties import Parties, configuration, write_sites

import rondo
from small_runs import save_tiny_bert


@pytest.mark.slow
def test_federation_equals_the_simulation(tmp_path: Path) -> None:
    sites = {"north": ("ann",), "south": ("bob",), "west": ("cid",)}
    write_sites(tmp_path, sites)
    save_tiny_bert(tmp_path / "bert")
    keys = {"r": 2, "target_modules": ["query", "value"], "use_dora": True}
    config = configuration(tmp_path, adapter=keys, train={"lr": 0.1, "local_epochs": 1})
    data = {**config["data"], "clients_from": str(tmp_path / "data" / "all")}
    expected = rondo.run({**config, "data": data}, run_dir=tmp_path / "simulation", device="cpu")
    parties = Parties(tmp_path, sites, state=tmp_path / "state")
    result = parties.run(config, tmp_path / "run")
    assert not parties.errors
    adapters = [(r.run_dir / "adapter" / "adapter_model.safetensors").read_bytes() for r in (expected, result)]
    assert adapters[0] == adapters[1]
    assert [r["scores"] for r in result.history] == [r["scores"] for r in expected.history]
    assert [r["bytes_up"] for r in result.history] == [r["bytes_up"] for r in expected.history]
