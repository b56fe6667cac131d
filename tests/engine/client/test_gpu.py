"""Runs on a GPU: the same as on the processor within rounding, and the same bits every time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import rondo
from methods import every_method
from outcomes import adapter
from small_runs import dying, reviews, settings

DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def run(bert: Path, folder: Path, device: str, name: str, **changes: Any) -> rondo.RunResult:
    sections = {"algorithm": {"name": name}, "train": {"precision": "exact"}, **changes}
    return rondo.run(settings(bert, rounds=3, **sections), train=reviews(60), run_dir=folder, device=device)


@pytest.mark.parametrize("name", every_method(default=("fedit", "rolora", "florg", "fedrep")))
def test_gpu_agrees_with_the_processor(name: str, bert: Path, tmp_path: Path) -> None:
    there, here = (run(bert, tmp_path / device, device, name) for device in (DEVICE, "cpu"))
    for one, other in zip(there.history, here.history, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-3)


def test_same_seed_gives_the_same_bits(bert: Path, tmp_path: Path) -> None:
    one, other = (run(bert, tmp_path / name, DEVICE, "rolora").run_dir for name in "ab")
    assert adapter(one) == adapter(other)


def test_cohort_equals_clients_alone(bert: Path, tmp_path: Path) -> None:
    together, alone = (
        run(bert, tmp_path / str(cohort), DEVICE, "fedit", simulation={"cohort": cohort}) for cohort in ("auto", 1)
    )
    for one, other in zip(together.history, alone.history, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)


def test_resumed_run_equals_an_uninterrupted_one(bert: Path, tmp_path: Path) -> None:
    whole = run(bert, tmp_path / "whole", DEVICE, "rolora")
    with pytest.raises(KeyboardInterrupt):
        rondo.run(
            settings(bert, rounds=3, algorithm={"name": "rolora"}, train={"precision": "exact"}),
            train=reviews(60),
            run_dir=tmp_path / "halved",
            device=DEVICE,
            observer=dying(1),
        )
    resumed = rondo.resume(tmp_path / "halved", train=reviews(60))
    assert adapter(resumed.run_dir) == adapter(whole.run_dir)
