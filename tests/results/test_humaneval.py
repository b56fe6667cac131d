"""HumanEval of a run: completions that are cut and tried, pass@k, consent, and the command."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outcomes import problems

sys.path.insert(0, str(Path(__file__).parents[1] / "runs"))

import rondo
import rondo.results.humaneval.score as humaneval
from choice_rows import save_tiny_llama
from rondo.cli.app import app
from rondo.data.files.room import Room
from rondo.results.humaneval.sandbox import Unavailable, check
from rondo.results.humaneval.score import HumanEval, cut, evaluate_code, pass_at_k, read_problems, summary
from rondo.tasks.language.causal_lm import CausalLM
from small_runs import settings, write_rows

ROWS = [
    {
        "task_id": f"Own/{n}",
        "prompt": f"def plus(x):\n    '''x and {n}'''\n",
        "entry_point": "plus",
        "test": f"def check(candidate):\n    assert candidate(1) == {n + 1}\n",
    }
    for n in range(3)
]


@pytest.mark.parametrize("samples", [1, 2, 5, 7])
def test_pass_at_k_is_the_mean_over_all_draws(samples: int) -> None:
    """The share of all sets of k completions that have a right one."""
    for right, k in itertools.product(range(samples + 1), range(1, samples + 1)):
        draws = list(itertools.combinations([i < right for i in range(samples)], k))
        assert pass_at_k(samples, right, k) == pytest.approx(sum(map(any, draws)) / len(draws), abs=1e-15)
    with pytest.raises(ValueError, match=f"k is {samples + 1}"):
        pass_at_k(samples, 0, samples + 1)


def test_summary_counts_problems_and_completions() -> None:
    passed = {"a": [1] + [0] * 9, "b": [0] * 10}
    records = [{"task_id": t, "reason": None if p else "wrong"} for t, all_ in passed.items() for p in all_]
    assert summary(records) == {"pass@1": pytest.approx(0.05), "pass@10": 0.5, "problems": 2, "executed": 20}


def test_completion_ends_before_the_next_definition() -> None:
    assert cut("    return 1\n\n\ndef other():\n    pass") == "    return 1\n\n"
    assert cut("    if x:\n        return 1\n# done\n") == "    if x:\n        return 1"
    assert cut("    return 1") == "    return 1"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    model = save_tiny_llama(folder / "llama")
    config = settings(
        model,
        data={"source": str(write_rows(folder / "train.jsonl", [{"text": "def f(x):\n    return x"}] * 12))},
        task={"kind": "causal-lm", "label": None, "max_length": 40},
        adapter={"target_modules": ["q_proj"]},
        rounds=1,
    )
    return rondo.run(config, run_dir=folder / "run", device="cpu").run_dir


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(write_rows(tmp_path / "problems.jsonl", ROWS))


@pytest.fixture
def sandbox() -> None:
    """Skips the test if the machine has no sandbox."""
    try:
        check()
    except Unavailable as why:
        pytest.skip(f"no sandbox: {why}")


def consent(file: str, **options: Any) -> HumanEval:
    return HumanEval(file, max_new_tokens=12, allow_execution=True, **options)


def test_code_is_not_run_without_consent(run_dir: Path, file: str) -> None:
    ran: list[Any] = []
    doubles: Any = {"attempt": ran.append, "sandbox": lambda: ran.append("checked")}
    found = problems(lambda: evaluate_code(run_dir, HumanEval(file), **doubles))
    assert set(found) == {"--allow-execution"}
    assert ran == []


def test_machine_without_bubblewrap_is_refused(
    run_dir: Path, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = problems(lambda: evaluate_code(run_dir, HumanEval(file, allow_execution=True)))
    assert "apt install bubblewrap" in found["--humaneval"]


def test_completions_are_tried(run_dir: Path, file: str, sandbox: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a model that knows one answer."""
    monkeypatch.setattr(humaneval, "_completed", lambda *a: ["    return x + 1\n\ndef other(): pass"] * 3)
    result = evaluate_code(run_dir, consent(file), device="cpu")
    assert [c["reason"] for c in result["completions"]] == ["AssertionError: ", None, "AssertionError: "]
    assert result["pass@1"] == pytest.approx(1 / 3)
    assert (result["problems"], result["executed"]) == (3, 3)


def test_likeliest_completion_is_the_adapters(run_dir: Path, file: str, sandbox: None) -> None:
    from test_choice_runs import Stock, generated

    shutil.copytree(run_dir.parent / "llama", run_dir / "llama", dirs_exist_ok=True)
    stock = Stock(run_dir / "adapter")
    result = evaluate_code(run_dir, consent(file), device="cpu")
    for record, row in zip(result["completions"], ROWS, strict=True):
        assert record["completion"] == cut(generated(stock, row["prompt"], 12))
    alone = evaluate_code(run_dir / "adapter", consent(file), device="cpu")
    assert alone == result


def test_samples_are_drawn_from_the_seed(run_dir: Path, file: str) -> None:
    options: Any = {"device": "cpu", "attempt": lambda trial: "not run", "sandbox": lambda: None}
    first, again = (evaluate_code(run_dir, consent(file, samples=4), **options) for _ in range(2))
    assert first == again
    assert first["executed"] == 12
    assert len({c["completion"] for c in first["completions"]}) > 6
    hot = evaluate_code(run_dir, consent(file, samples=4, temperature=3.0), **options)
    assert hot["completions"] != first["completions"]


def test_bad_options_are_named(run_dir: Path, file: str, sandbox: None, tmp_path: Path) -> None:
    found = problems(lambda: evaluate_code(run_dir, HumanEval(file, samples=0, temperature=0)))
    assert set(found) == {"--allow-execution", "--samples", "--temperature"}
    other = str(write_rows(tmp_path / "other.jsonl", [{"prompt": "a"}]))
    assert "'task_id'" in problems(lambda: evaluate_code(run_dir, consent(other)))["--humaneval"]
    long = HumanEval(file, max_new_tokens=160, allow_execution=True)
    assert "the model takes 160" in problems(lambda: evaluate_code(run_dir, long, device="cpu"))["--max-new-tokens"]


def test_command_writes_completions(run_dir: Path, file: str, sandbox: None, tmp_path: Path) -> None:
    to = tmp_path / "tried.jsonl"
    words = ["evaluate", str(run_dir), "--humaneval", file, "--max-new-tokens", "8", "--to", str(to)]
    refused = CliRunner().invoke(app, words)
    assert refused.exit_code == 2
    assert "--allow-execution" in refused.stderr
    done = CliRunner().invoke(app, [*words, "--allow-execution"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.partition("\n")[2])["humaneval"]["executed"] == 3
    assert [json.loads(line)["task_id"] for line in to.read_text().splitlines()] == ["Own/0", "Own/1", "Own/2"]
    alone = CliRunner().invoke(app, ["evaluate", str(run_dir), "--allow-execution"])
    assert "only --humaneval uses it" in alone.stderr


def test_prompt_that_ends_in_no_line_break_is_tried_as_the_model_read_it(
    run_dir: Path, sandbox: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(write_rows(tmp_path / "problems.jsonl", [{**ROWS[1], "prompt": ROWS[1]["prompt"].rstrip("\n")}]))
    monkeypatch.setattr(humaneval, "_completed", lambda *a: ["    return x + 1\n"])
    assert evaluate_code(run_dir, consent(file), device="cpu")["pass@1"] == 1.0


def test_file_of_problems_has_a_size_that_no_key_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(humaneval, "Room", lambda megabytes, key: Room(0, key))
    file = str(write_rows(tmp_path / "problems.jsonl", ROWS))
    assert "take more memory than the 0 MiB that such a file may" in problems(lambda: read_problems(file))[file]


@pytest.mark.parametrize("cell", ["", " \n", None, 3])
def test_problem_without_text_is_refused(cell: Any, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "problems.jsonl", [ROWS[0], {**ROWS[1], "test": cell}])
    found = problems(lambda: read_problems(str(file)))
    expected = f"{file}, line 2 has no text in column 'test': name a file with HumanEval's columns"
    assert list(found.values()) == [expected]


@pytest.mark.parametrize(("samples", "drawn"), [(1, False), (2, True)])
def test_single_sample_is_the_likeliest(
    samples: int, drawn: bool, run_dir: Path, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[Any] = []
    options: Any = {"device": "cpu", "attempt": lambda trial: "not run", "sandbox": lambda: None}
    monkeypatch.setattr(humaneval, "NetworkPredictor", lambda model, seen, base, how: ways.append(how))
    monkeypatch.setattr(CausalLM, "completions", lambda self, prompts, predictor: ["    pass"] * len(prompts))
    evaluate_code(run_dir, HumanEval(file, samples=samples, temperature=0.6, allow_execution=True), **options)
    assert [how.temperature for how in ways] == [0.6 if drawn else None] * len(ways)
    assert ways
