"""lm-eval on a run: equal to lm-eval alone on the exported adapter, and refusals that need no lm-eval."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import rondo
from choice_rows import questions, save_tiny_llama
from outcomes import problems
from rondo.cli.app import app
from rondo.results.evaluate import evaluate_by_harness
from small_runs import files, settings

TEST = questions(17, seed=1)
TASK = """
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: "FILE"}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
target_delimiter: "\\n"
doc_to_choice: "{{choices}}"
doc_to_target: "{{['A', 'B', 'C', 'D'].index(answer)}}"
num_fewshot: 0
metric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_bytes}]
"""
needed = pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="lm-eval is not installed")


def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    assert (
        "pip install 'lm-eval>=0.4.13,<0.5'" in problems(lambda: evaluate_by_harness(tmp_path, ["mmlu"]))["--lm-eval"]
    )
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path), "--lm-eval", "mmlu"])
    assert result.exit_code == 2
    assert "lm-eval>=0.4.13" in result.stderr


def test_options_that_do_not_go_together_are_named(tmp_path: Path) -> None:
    for options, words in (
        (["--lm-eval-tasks", "x"], "--lm-eval-tasks: only --lm-eval uses it"),
        (["--lm-eval", "mmlu", "--data", "x"], "--data: --lm-eval has rows of its own"),
        (["--lm-eval", "mmlu", "--humaneval", "x"], "--humaneval: --lm-eval has rows of its own"),
        (["--humaneval", "x", "--generate"], "--generate: --humaneval has rows of its own"),
    ):
        result = CliRunner().invoke(app, ["evaluate", str(tmp_path), *options])
        assert result.exit_code == 2
        assert words in result.stderr


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A personal method, so that clients have models of their own."""
    folder = tmp_path_factory.mktemp("harness")
    model = save_tiny_llama(folder / "llama")
    config = settings(
        model,
        data=files(folder, questions(30), TEST, "jsonl"),
        task={"kind": "multiple-choice", "text": None, "label": None, "prompt": "question", "choices": "choices"}
        | {"answer": "answer", "max_length": 80},
        algorithm={"name": "fedsa-lora"},
        adapter={"r": 8, "target_modules": "all-linear"},
        train={"lr": 0.02, "local_epochs": 6, "precision": "exact"},
    )
    (folder / "tasks").mkdir()
    (folder / "tasks" / "colours.yaml").write_text(TASK.replace("FILE", str(folder / "test.jsonl")))
    return rondo.run(config, run_dir=folder / "run", device="cpu").run_dir


def by_lm_eval_alone(run_dir: Path, adapter: Path) -> Any:
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    arguments = {"pretrained": str(run_dir.parent / "llama"), "peft": str(adapter), "dtype": "float32"}
    manager = TaskManager(include_path=str(run_dir.parent / "tasks"), include_defaults=False)
    found = simple_evaluate(
        "hf", model_args=arguments, tasks=["colours"], task_manager=manager, device="cpu", batch_size=8
    )
    return json.loads(json.dumps(found["results"], default=str))


@needed
def test_results_are_those_of_lm_eval_alone(run_dir: Path) -> None:
    """And Rondo's own scores are lm-eval's acc and acc_bytes."""
    folder = run_dir.parent / "tasks"
    alone = by_lm_eval_alone(run_dir, run_dir / "adapter")
    for path in (run_dir, run_dir / "adapter"):
        assert evaluate_by_harness(path, ["colours"], folder, device="cpu")["results"] == alone
    own = rondo.evaluate(run_dir, device="cpu")["test"]
    assert own["accuracy_likelihood"] == alone["colours"]["acc,none"]
    assert own["accuracy_normalised"] == alone["colours"]["acc_bytes,none"]


@needed
def test_a_clients_model_is_scored(run_dir: Path, tmp_path: Path) -> None:
    client = next(iter(json.loads((run_dir / "partition.json").read_text())["clients"]))
    rondo.export(run_dir, tmp_path / "own", client=client)
    found = evaluate_by_harness(run_dir, ["colours"], run_dir.parent / "tasks", client=client, device="cpu")
    assert found["results"] == by_lm_eval_alone(run_dir, tmp_path / "own")
    assert "--client" in problems(lambda: evaluate_by_harness(run_dir / "adapter", ["colours"], client=client))


@needed
def test_command_prints_json_and_refuses_other_tasks(run_dir: Path) -> None:
    words = ["evaluate", str(run_dir), "--lm-eval-tasks", str(run_dir.parent / "tasks"), "--device", "cpu"]
    done = CliRunner().invoke(app, [*words, "--lm-eval", "colours"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["lm-eval"]["n-shot"] == {"colours": 0}
    refused = CliRunner().invoke(app, [*words, "--lm-eval", "colors"])
    assert refused.exit_code == 2
    assert "no task 'colors'; there are: colours" in refused.stderr
    folder = problems(lambda: evaluate_by_harness(run_dir, ["colours"], "nowhere"))["--lm-eval-tasks"]
    assert "'nowhere' is not a folder" in folder


@needed
def test_nobody_elses_draws_change(run_dir: Path) -> None:
    import random

    import numpy
    import torch

    def draws() -> tuple[float, float, float]:
        return random.random(), float(numpy.random.rand()), float(torch.rand(1))

    def seeded() -> None:
        random.seed(1), numpy.random.seed(1), torch.manual_seed(1)

    seeded()
    expected = draws()
    seeded()
    evaluate_by_harness(run_dir, ["colours"], run_dir.parent / "tasks", device="cpu")
    assert draws() == expected
