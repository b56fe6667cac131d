"""A trainer of the user's own at sites: the federation equals its simulation, and a contract must allow the code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from parties import OPEN, Parties, configuration, write_sites
from simulations import simulated

from outcomes import adapter, weights
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
    expected = simulated(tmp_path, config, tmp_path / "simulation")
    parties = Parties(tmp_path, state=tmp_path / "state", options={"contract": ALLOWED})
    result = parties.run(config, tmp_path / "run")
    assert not parties.errors
    assert adapter(result.run_dir) == adapter(expected.run_dir)
    assert [r["scores"] for r in result.history] == [r["scores"] for r in expected.history]


def test_contract_must_allow_the_code(config: dict[str, Any]) -> None:
    """Those of Rondo are not code of one's own."""
    own = load(config, ("data.source=", 'data.clients_from="sites"'), check_paths=False)
    assert "train.trainer = own_trainers:looking" in of_code(own, OPEN).reason
    assert of_code(own, ALLOWED).kept
    ready_made = own.model_copy(update={"train": own.train.model_copy(update={"trainer": "transformers"})})
    assert of_code(ready_made, OPEN).kept


class TorchrunNorth(Parties):
    """North is two processes of torchrun."""

    def start(self, site: str, **options: Any) -> None:
        if site != "north":
            return super().start(site, **options)
        site_options = {
            "server": f"localhost:{self.port}",
            "keys": self.folder / "keys" / site,
            "data": self.folder / "data" / site,
            "contract": self.folder / "site.toml",
            "model": self.folder / "bert",
            "state": self.folder / "at-north",
        }
        words = [str(word) for name, value in site_options.items() for word in (f"--{name}", value)]
        command = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python", "rondo", "federate", "client"]
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        subprocess.Popen(
            [sys.executable, *command, *words, "--device", "cpu", "--yes"],
            env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        )
        return None


@pytest.mark.slow
def test_site_of_two_processes_equals_one(config: dict[str, Any], tmp_path: Path) -> None:
    """Each has half of the batch of all rows of a client, and a mean of two means of halves is the mean."""
    file = tmp_path / "bert" / "config.json"
    without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    file.write_text(json.dumps({**json.loads(file.read_text()), **without}))
    config = {**config, "train": {"lr": 0.02, "local_epochs": 2, "batch_size": 20, "trainer": "transformers"}}
    config["data"] = {**config["data"], "validation_fraction": 0.0}
    results = [
        of(tmp_path, state=tmp_path / of.__name__).run(config, tmp_path / f"run-{of.__name__}", wait=300.0)
        for of in (Parties, TorchrunNorth)
    ]
    one, two = (weights(r.run_dir) for r in results)
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 2e-5
    assert [r["clients"] for r in results[1].history] == [3] * config["rounds"]
