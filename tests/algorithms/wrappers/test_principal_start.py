"""PiSSA's start: PEFT's factors, around every method that averages factors, and FeDeRA around FedIT."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import nn

import rondo
from outcomes import weights
from rondo import algorithms
from rondo.algorithm import Weight
from rondo.algorithms.parts.principal import principal
from rondo.algorithms.wrappers.principal_start import PrincipalStart
from rondo.config import load
from rondo.errors import ConfigError
from rondo.testing import LAWS
from rondo.testing.run import Run
from small_runs import reviews, save_tiny_bert, settings, write_rows

REFUSED = ("fed-sb", "florg", "flora", "flexlora", "fedex-lora", "federa", "fedsvd", "fedloru", "slora", "pfedlora")


def test_factors_and_base_are_pefts() -> None:
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(9, 7))
    weight = base[0].weight.detach().clone()
    lora = peft.LoraConfig(r=3, lora_alpha=6, target_modules=["0"], init_lora_weights="pissa")
    layer = peft.LoraModel(base, lora, "default").model[0]
    params = {"0.A": torch.ones(3, 9), "0.B": torch.zeros(7, 3)}
    factors, chunks = principal(params, {"0": Weight((7, 9), 2.0, lambda: weight)})
    for mine, theirs in zip(
        (factors["0.B"] @ factors["0.A"], factors["0.A"].abs(), factors["0.B"].abs(), weight + chunks["0"].dense()),
        (
            layer.lora_B["default"].weight @ layer.lora_A["default"].weight,
            layer.lora_A["default"].weight.abs(),  # a singular vector has either sign
            layer.lora_B["default"].weight.abs(),
            layer.get_base_layer().weight,
        ),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs.detach(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("law", ["exactness", "zero steps", "cohort", "state survives"])
@pytest.mark.parametrize("name", ["rolora", "ffa-lora", "lora-a2"])
def test_laws_of_the_method_hold(name: str, law: str) -> None:
    LAWS[law](PrincipalStart(algorithms.get(name)), 0)  # raises LawBroken


@pytest.mark.parametrize("name", REFUSED)
def test_method_with_a_start_of_its_own_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"init_lora_weights: 'pissa' is for methods that average A and B"):
        Run(PrincipalStart(algorithms.get(name)), 0)


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    data = {"source": str(write_rows(tmp_path / "rows.csv", reviews(24)))}
    start = {"init_lora_weights": "pissa"}
    return settings(save_tiny_bert(tmp_path / "model"), data=data, partition={"clients": 2}, adapter=start)


def test_fedit_from_it_is_federa(config: dict[str, Any], tmp_path: Path) -> None:
    """Bit for bit, and resumed too."""
    results = [rondo.run(config, run_dir=tmp_path / "fedit", device="cpu")]
    adapter = {k: v for k, v in config["adapter"].items() if k != "init_lora_weights"}
    federa = {**config, "adapter": adapter, "algorithm": {"name": "federa"}}
    results.append(rondo.run(federa, run_dir=tmp_path / "federa", device="cpu"))
    rondo.run({**config, "rounds": 1}, run_dir=tmp_path / "part", device="cpu")
    results.append(rondo.resume(tmp_path / "part", sets=["rounds=2"], device="cpu"))
    first, *others = (weights(r.run_dir) for r in results)
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=0)
    assert {t.shape[0] for n, t in first.items() if "lora_A" in n} == {4}


def test_ranks_of_clients_and_the_fast_decomposition_are_refused(config: dict[str, Any]) -> None:
    ranked = {**config, "clients": {"ranks": [1, 2]}, "algorithm": {"name": "hetlora"}}
    with pytest.raises(ConfigError, match="with 'pissa', a client whose rank is below the run's"):
        load(ranked)
    with pytest.raises(ConfigError, match="take 'pissa', whose decomposition is exact"):
        load({"adapter": {"init_lora_weights": "pissa_niter_4"}})
