"""Runs whose clients take private steps: every kind of method, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import rondo
from kinds_of_runs import make_sources
from methods import KINDS, every_method
from rondo.algorithms.compatible import refused
from rondo.algorithms.table import TABLE
from rondo.errors import ConfigError
from rondo.models.loading.peft import read_tensors
from rondo.runs.runner import RunResult
from small_runs import settings

PRIVACY = {"adversary": "server", "unit": "example", "clip": 0.5, "noise": 0.5, "delta": 1e-5, "debug_seed": 1}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sources(tmp_path_factory.mktemp("sources"))


def configured(sources: Path, name: str = "fedit", **changes: Any) -> dict[str, Any]:
    """Two rounds of two clients; SGD, so that a difference of bits does not grow into one of signs."""
    sections: dict[str, Any] = {
        "algorithm": {"name": name, **({"option": "II"} if name == "scaffold" else {})},
        "data": {"source": str(sources / "rows.csv"), "test_split": "", "validation_fraction": 0.25},
        "partition": {"clients": 2},
        "clients": {"weighting": "uniform"},
        "train": {"optimizer": "sgd", "lr": 0.05, "batch_size": 6, "local_epochs": 1, "max_grad_norm": 0.0},
        "evaluation": {"diagnostics_every": 0},
        "privacy": PRIVACY,
    }
    for section, keys in changes.items():
        sections[section] = {**sections.get(section, {}), **keys}
    return settings(sources / "bert", **sections)


def run(config: dict[str, Any], folder: Path) -> RunResult:
    return rondo.run(config, run_dir=folder, device="cpu")


NAMES = [n for n in TABLE if n == "scaffold" or "example DP" not in refused(TABLE[n].traits, linear=TABLE[n].linear)]


@pytest.mark.parametrize("name", every_method(NAMES, KINDS))
def test_every_method_runs_and_a_row_does_not_see_the_others(name: str, sources: Path, tmp_path: Path) -> None:
    """A pass of one row leaves nothing that an objective could mix."""
    together = run(configured(sources, name), tmp_path / "together")
    assert [(r["skipped"], r["failed"], r["loss"]) for r in together.history] == [(None, [], None)] * 2
    alone = run(configured(sources, name, train={"micro_batch": 1}), tmp_path / "alone")
    expected = read_tensors(alone.run_dir / "adapter")
    for key, tensor in read_tensors(together.run_dir / "adapter").items():
        torch.testing.assert_close(tensor, expected[key], rtol=1e-3, atol=1e-5)


def test_debug_seed_repeats_a_run_and_no_seed_does_not(sources: Path, tmp_path: Path) -> None:
    results = [run(configured(sources), tmp_path / n) for n in ("one", "two")]
    results += [run(configured(sources, privacy={"debug_seed": None}), tmp_path / n) for n in ("three", "four")]
    first, same, third, other = ((r.run_dir / "adapter" / "adapter_model.safetensors").read_bytes() for r in results)
    assert first == same
    assert third != other


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("privacy", "budget", 3.0),
        ("privacy", "group", "who"),
        ("privacy", "clip", "adaptive"),
        ("train", "max_grad_norm", 1.0),
        ("train", "packing", True),
        ("train", "length_grouping", True),
        ("clients", "weighting", "examples"),
        ("evaluation", "local_only", True),
        ("evaluation", "fine_tune_epochs", 1),
    ],
)
def test_what_breaks_the_guarantee_is_refused(
    section: str, key: str, value: Any, sources: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"{section}\.{key}: ") as caught:
        run(configured(sources, **{section: {key: value}}), tmp_path / "run")
    assert len(caught.value.problems) == 1
