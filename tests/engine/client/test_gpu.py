"""Runs on a GPU: the same as on the processor within rounding, and the same bits every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import rondo
from methods import every_method
from small_runs import reviews, save_tiny_bert, settings

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_bert(tmp_path_factory.mktemp("gpu") / "bert")


def run(bert: Path, folder: Path, device: str, name: str, **changes: Any) -> rondo.RunResult:
    sections = {"algorithm": {"name": name}, "train": {"precision": "exact"}, **changes}
    return rondo.run(settings(bert, rounds=3, **sections), train=reviews(60), run_dir=folder, device=device)


def weights(result: rondo.RunResult) -> dict[str, torch.Tensor]:
    (file,) = (result.run_dir / "adapter").glob("*.safetensors")
    return safetensors.torch.load_file(file)


@pytest.mark.parametrize("name", every_method(default=("fedit", "rolora", "florg", "fedrep")))
def test_gpu_agrees_with_the_processor(name: str, bert: Path, tmp_path: Path) -> None:
    there, here = (run(bert, tmp_path / device, device, name) for device in (DEVICE, "cpu"))
    for one, other in zip(there.history, here.history, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)


def test_same_seed_gives_the_same_bits(bert: Path, tmp_path: Path) -> None:
    one, other = (weights(run(bert, tmp_path / name, DEVICE, "rolora")) for name in "ab")
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_cohort_equals_clients_alone(bert: Path, tmp_path: Path) -> None:
    together, alone = (
        run(bert, tmp_path / str(cohort), DEVICE, "fedit", simulation={"cohort": cohort}) for cohort in ("auto", 1)
    )
    for one, other in zip(together.history, alone.history, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_resumed_run_equals_an_uninterrupted_one(bert: Path, tmp_path: Path) -> None:
    whole = weights(run(bert, tmp_path / "whole", DEVICE, "rolora"))

    class Stops(rondo.Observer):
        def round_done(self, record: dict[str, Any]) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rondo.run(
            settings(bert, rounds=3, algorithm={"name": "rolora"}, train={"precision": "exact"}),
            train=reviews(60),
            run_dir=tmp_path / "halved",
            device=DEVICE,
            observer=Stops(),
        )
    resumed = weights(rondo.resume(tmp_path / "halved", train=reviews(60)))
    torch.testing.assert_close(whole, resumed, rtol=0, atol=0)
