"""A run that goes on for more rounds than it began with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

import rondo
from methods import every_method
from outcomes import tree
from rondo.cli import app
from rondo.errors import ConfigError
from rondo.records.directory import RunDirectory
from rondo.runs import launch
from small_runs import reviews, save_tiny_bert, settings, write_rows

METHODS = ("fedit", "rolora", "florg", "fedsa-lora", "fedloru", "scaffold")
TENSORS = "adapter/adapter_model.safetensors"


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    folder = tmp_path_factory.mktemp("more")
    bert, rows = save_tiny_bert(folder / "bert"), write_rows(folder / "rows.csv", reviews(36))

    def make(name: str, rounds: int, **changes: Any) -> dict[str, Any]:
        sections = {
            "rounds": rounds,
            "algorithm": {"name": name} | ({"tau": 2} if name == "fedloru" else {}),
            "data": {"source": str(rows), "test_split": "", "validation_fraction": 0.25},
            "clients": {"per_round": 2},
            "train": {"local_epochs": 1, "batch_size": 4},
        }
        return settings(bert, **{**sections, **changes})

    return make


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", every_method(METHODS, default=("florg", "scaffold")))
def test_run_of_three_rounds_goes_on_to_that_of_five(
    configured: Callable[..., dict[str, Any]], tmp_path: Path, name: str
) -> None:
    whole = rondo.run(configured(name, 5), run_dir=tmp_path / "whole", device="cpu")
    rondo.run(configured(name, 3), run_dir=tmp_path / "run", device="cpu")
    more = rondo.resume(tmp_path / "run", rounds=5)
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        assert (more.run_dir / "adapter" / file).read_bytes() == (whole.run_dir / "adapter" / file).read_bytes()
    assert [r["loss"] for r in more.history] == [r["loss"] for r in whole.history]
    assert [r["bytes_up"] for r in more.history] == [r["bytes_up"] for r in whole.history]
    assert more.metrics == whole.metrics
    assert RunDirectory(more.run_dir).config() == RunDirectory(whole.run_dir).config()
    manifests = [RunDirectory(result.run_dir).manifest() for result in (more, whole)]
    assert manifests[0]["config"] == manifests[1]["config"]
    again = rondo.resume(tmp_path / "run")
    assert len(again.history) == 5


def test_command_line_goes_on_too(configured: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    rondo.run(configured("fedit", 2), run_dir=tmp_path / "run", device="cpu")
    done = CliRunner().invoke(app, ["resume", str(tmp_path / "run"), "--rounds", "3"])
    assert done.exit_code == 0, done.output
    assert len(RunDirectory(tmp_path / "run").rounds()) == 3
    fewer = CliRunner().invoke(app, ["resume", str(tmp_path / "run"), "--rounds", "2"])
    assert fewer.exit_code == 2
    assert "rounds: 2, and the run has 3: it can only get more" in " ".join(fewer.output.split())


@pytest.mark.slow
@pytest.mark.sweep(2)
@pytest.mark.parametrize("unwritten", ["config.toml", "manifest.json"])
def test_killed_while_it_gets_its_rounds_it_ends_with_one_number_or_the_other(
    configured: Callable[..., dict[str, Any]], tmp_path: Path, killed_at: Any, unwritten: str
) -> None:
    """The summary is gone first, so a run that was finished is not taken for one with more rounds."""
    rondo.run(configured("fedit", 3), run_dir=tmp_path / "run", device="cpu")
    shutil.copytree(tmp_path / "run", tmp_path / "short")
    with pytest.raises(KeyboardInterrupt), killed_at(f"{unwritten}.tmp", 0, whole=False):
        rondo.resume(tmp_path / "run", rounds=4)
    left = rondo.resume(tmp_path / "run")
    assert len(left.history) == (3 if unwritten == "config.toml" else 4)
    more, short = rondo.resume(tmp_path / "run", rounds=4), rondo.resume(tmp_path / "short", rounds=4)
    assert (more.run_dir / TENSORS).read_bytes() == (short.run_dir / TENSORS).read_bytes()
    assert json.loads((more.run_dir / "summary.json").read_text(encoding="utf-8"))["rounds"] == 4


@pytest.mark.parametrize(
    ("name", "changes", "path", "reason"),
    [
        ("fedit", {"train": {"schedule": "cosine"}}, "train.schedule", "falls to its end over all rounds"),
        ("rolora", {"algorithm": {"name": "rolora", "alternate_for": 0.5}}, "algorithm.alternate_for", "its border"),
        ("fedit", {"evaluation": {"patience": 1, "clients_every": 1}}, "evaluation.patience", "start another run"),
    ],
)
def test_rounds_that_would_have_been_others_are_refused(
    configured: Callable[..., dict[str, Any]],
    tmp_path: Path,
    name: str,
    changes: dict[str, Any],
    path: str,
    reason: str,
) -> None:
    changes = {**changes, "train": {"local_epochs": 1, "batch_size": 4, "lr": 1e-9, **changes.get("train", {})}}
    if "schedule" in changes["train"] or "alternate_for" in changes.get("algorithm", {}):
        changes["train"]["lr"] = 1e-3
    rondo.run(configured(name, 4, **changes), run_dir=tmp_path / "run", device="cpu")
    before = tree(tmp_path / "run")
    with pytest.raises(ConfigError, match=reason) as refused:
        rondo.resume(tmp_path / "run", rounds=6)
    assert refused.value.problems[0].path == path
    assert tree(tmp_path / "run") == before


def test_result_of_more_rounds_is_opened_again(configured: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    rondo.run(configured("fedit", 2), run_dir=tmp_path / "run", device="cpu")
    rondo.export(tmp_path / "run", to=tmp_path / "two")
    rondo.resume(tmp_path / "run", rounds=3)
    rondo.export(tmp_path / "run", to=tmp_path / "three")
    two, three = (load_file(tmp_path / n / "adapter_model.safetensors") for n in ("two", "three"))
    assert two.keys() == three.keys()
    assert [name for name in two if not two[name].equal(three[name])] != []


def test_other_keys_are_kept(configured: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(ConfigError, match=r"all but rounds, simulation\.engine and simulation.workers"):
        launch.check_changes(["train.lr=1"])
