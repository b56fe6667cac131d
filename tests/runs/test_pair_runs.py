"""Runs of sequence to sequence: laws of cohorts and resumes, answers, exports and refusals, against stock libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from huggingface_hub import ModelCard

import rondo
from outcomes import adapter, told, verified
from pair_rows import POSITIONS, requests, save_tiny
from rondo.config import load
from rondo.models.loading.peft import read_tensors
from rondo.results.evaluate import evaluate_by_harness
from rondo.results.humaneval.score import HumanEval, evaluate_code
from small_runs import files, settings, stopped

TEST = requests(9, seed=1)
NEW = 8


def config(model: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    data = files(folder, requests(40), TEST)
    base: dict[str, Any] = {
        "data": data,
        "task": {"kind": "seq2seq-lm", "text": None, "label": None, "prompt": "request", "response": "answer"}
        | {"max_length": 40, "max_target_length": 24},
        "adapter": {"r": 4, "target_modules": "all-linear", "lora_dropout": 0.1},
        "train": {"lr": 0.02, "local_epochs": 3, "precision": "exact"},
        "evaluation": {"generate": 4, "max_new_tokens": NEW, "batch_size": 4},
    }
    return settings(model, **{k: {**base.get(k, {}), **changes.get(k, {})} for k in base | changes})


@pytest.fixture(scope="module", params=["T5", pytest.param("BART", marks=pytest.mark.slow)])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> rondo.RunResult:
    folder = tmp_path_factory.mktemp(request.param)
    return rondo.run(config(save_tiny(request.param, folder / "model"), folder), run_dir=folder / "run", device="cpu")


def model_of(result: rondo.RunResult) -> Path:
    return result.run_dir.parent / "model"


def again(result: rondo.RunResult, folder: Path, **changes: Any) -> dict[str, Any]:
    return config(model_of(result), folder, **changes)


def manifest(result: rondo.RunResult) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((result.run_dir / "manifest.json").read_text())
    return content


@pytest.mark.slow
def test_run_learns_and_says_what_it_used(finished: rondo.RunResult) -> None:
    before, after = finished.summary["before"]["global"], finished.metrics["global"]
    assert after["loss"] < before["loss"]
    assert after["tokens"] == before["tokens"] > 3 * len(TEST)
    record = manifest(finished)
    assert record["one_at_a_time"] is None
    assert [record[key]["on"] for key in ("first_token_only", "packing")] == [False, False]
    assert record["prefix"]["layers"] == 0
    for key in ("prefix", "first_token_only", "packing"):
        assert record[key]["reason"]


@pytest.mark.slow
def test_cohort_equals_one_client_at_a_time(finished: rondo.RunResult, tmp_path: Path) -> None:
    """With adapter dropout, and clients whose longest request and answer have other lengths.

    By SGD: where a gradient is nearly zero, Adam divides its rounding by itself, which some processors show.
    """
    train = {"optimizer": "sgd", "lr": 0.5, "local_epochs": 1}
    together, alone = (
        read_tensors(
            rondo.run(
                again(finished, tmp_path, train=train, simulation={"cohort": cohort}, evaluation={"generate": 0}),
                run_dir=tmp_path / f"cohort-{cohort}",
                device="cpu",
            ).run_dir
            / "adapter"
        )
        for cohort in ("auto", 1)
    )
    assert together.keys() == alone.keys()
    for name, tensor in together.items():
        assert float((tensor - alone[name]).abs().max()) < 1e-5 * float(tensor.abs().max()), name


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_resumed_run_has_the_same_bits(finished: rondo.RunResult, tmp_path: Path, rounds: int) -> None:
    stopped(again(finished, tmp_path), tmp_path / "run", at=rounds)
    resumed = rondo.resume(tmp_path / "run")
    assert resumed.summary["samples"] == finished.summary["samples"]
    assert adapter(resumed.run_dir) == adapter(finished.run_dir)


@pytest.mark.slow
def test_evaluation_is_that_of_the_run(finished: rondo.RunResult) -> None:
    expected = finished.metrics["global"]
    for path in (finished.run_dir, finished.run_dir / "adapter"):
        scores = rondo.evaluate(path, device="cpu")["test"]
        assert scores == pytest.approx(expected, abs=1e-6)
    other = rondo.evaluate(finished.run_dir, data=finished.run_dir.parent / "train.csv", device="cpu")["test"]
    assert other["examples"] == 40


@pytest.mark.slow
@torch.no_grad()
def test_autopeft_gives_the_same_logits_and_answers(finished: rondo.RunResult, tmp_path: Path) -> None:
    """From the adapter's folder alone, by the lines of its card."""
    folder = finished.run_dir / "adapter"
    base = load(finished.run_dir / "config.toml").model.name
    assert json.loads((folder / "adapter_config.json").read_text())["task_type"] == "SEQ_2_SEQ_LM"
    card = ModelCard.load(folder / "README.md")
    code = card.text.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    code = code.replace(f'base = "{Path(base).name}"', f"base = {base!r}")
    exec(code.replace('folder = "."', f"folder = {str(folder)!r}"), names)
    stock, words = names["model"].eval(), names["tokenizer"]
    assert type(stock) is peft.PeftModelForSeq2SeqLM
    coded = words([r["request"] for r in TEST], padding=True, return_tensors="pt")
    labels = words(text_target=[r["answer"] for r in TEST], padding=True, return_tensors="pt")["input_ids"]
    loss = float(stock(**coded, labels=labels.masked_fill(labels == 0, -100)).loss)
    assert finished.metrics["global"]["loss"] == pytest.approx(loss, rel=1e-5)
    made = rondo.predict(finished.run_dir, [{"request": r["request"]} for r in TEST], device="cpu", max_new_tokens=NEW)
    stock.get_base_model().generation_config = transformers.GenerationConfig(
        max_new_tokens=NEW, decoder_start_token_id=stock.config.decoder_start_token_id, eos_token_id=1, pad_token_id=0
    )
    answers = words.batch_decode(stock.generate(**coded), skip_special_tokens=True)
    assert [m["response"] for m in made] == answers
    samples = finished.summary["samples"]
    assert [s["after"] for s in samples] == [made[i]["response"] for i in (0, 2, 4, 6)]
    assert [(s["prompt"], s["expected"]) for s in samples] == [tuple(TEST[i].values()) for i in (0, 2, 4, 6)]


@pytest.mark.parametrize("merged", [False, True])
def test_export_is_verified(finished: rondo.RunResult, tmp_path: Path, merged: bool) -> None:
    exported = verified(finished.run_dir, tmp_path / "out", merged=merged)
    assert exported.verification.largest > 0.1
    if merged:
        card = ModelCard.load(tmp_path / "out" / "README.md").text
        assert 'AutoModelForSeq2SeqLM.from_pretrained(".")' in card


def test_harnesses_of_causal_models_are_refused(finished: rondo.RunResult, tmp_path: Path) -> None:
    problems = tmp_path / "problems.jsonl"
    problems.write_text(json.dumps({"task_id": "a", "prompt": "def f():", "entry_point": "f", "test": "x"}) + "\n")
    (tmp_path / "tasks").mkdir()
    for start, key in (
        (lambda: evaluate_by_harness(finished.run_dir, ["x"], tmp_path / "tasks"), "--lm-eval"),
        (lambda: evaluate_code(finished.run_dir, HumanEval(str(problems), allow_execution=True)), "--humaneval"),
        (lambda: rondo.evaluate(finished.run_dir, generate=True, device="cpu"), "--generate"),
    ):
        assert {path for path, _ in told(start)} == {key}


@pytest.mark.slow
def test_answers_beyond_the_positions_are_refused_and_prompts_cut_as_in_training(tmp_path: Path) -> None:
    folder = save_tiny("BART", tmp_path / "model")
    result = rondo.run(
        config(folder, tmp_path, train={"local_epochs": 1}, evaluation={"generate": 0}) | {"rounds": 1},
        run_dir=tmp_path / "run",
        device="cpu",
    )
    with pytest.raises(rondo.ConfigError, match=f"65, and the model writes {POSITIONS} tokens: lower it"):
        rondo.predict(result.run_dir, [{"request": "red"}], device="cpu", max_new_tokens=POSITIONS + 1)
    long = [{"request": "red " * n} for n in (POSITIONS, 3 * POSITIONS)]
    assert len({p["response"] for p in rondo.predict(result.run_dir, long, device="cpu", max_new_tokens=4)}) == 1
    made = rondo.predict(result.run_dir, [{"request": "red"}], device="cpu", max_new_tokens=POSITIONS)
    assert set(made[0]) == {"response"}


@pytest.mark.slow
def test_model_given_in_python_trains(tmp_path: Path) -> None:
    folder = save_tiny("T5", tmp_path / "model")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    words = transformers.AutoTokenizer.from_pretrained(folder)
    raw = config(folder, tmp_path)
    named = rondo.run(raw, run_dir=tmp_path / "named", device="cpu")
    given = rondo.run(
        {k: v for k, v in raw.items() if k != "model"}, model=model, tokenizer=words, run_dir=tmp_path / "run",
        device="cpu",
    )  # fmt: skip
    assert given.metrics["global"] == named.metrics["global"]


@pytest.mark.slow
def test_recomputed_layers_have_the_same_bits(finished: rondo.RunResult, tmp_path: Path) -> None:
    raw = again(finished, tmp_path, train={"checkpointing": True})
    result = rondo.run(raw, run_dir=tmp_path / "run", device="cpu")
    assert adapter(result.run_dir) == adapter(finished.run_dir)


@pytest.mark.slow
def test_model_trained_whole_answers(tmp_path: Path) -> None:
    changes = {"train": {"what": ["*DenseReluDense*"]}, "algorithm": {"name": "fedavg"}}
    raw = config(save_tiny("T5", tmp_path / "model"), tmp_path, **changes)
    del raw["adapter"]
    result = rondo.run(raw, run_dir=tmp_path / "run", device="cpu")
    rows = [{"request": s["prompt"]} for s in result.summary["samples"]]
    made = rondo.predict(result.run_dir, rows, device="cpu", max_new_tokens=NEW)
    assert [s["after"] for s in result.summary["samples"]] == [m["response"] for m in made]
    verified(result.run_dir, tmp_path / "out")


@pytest.mark.slow
def test_builtin_sentences_are_answered_with_their_intent(tmp_path: Path) -> None:
    folder = save_tiny("T5", tmp_path / "model")
    task = {"prompt": "text", "response": "intent"}
    raw = config(folder, tmp_path, task=task, evaluation={"generate": 0})
    raw |= {"data": {"max_train_rows": 60, "max_test_rows": 12}, "rounds": 1}
    result = rondo.run(raw, run_dir=tmp_path / "run", device="cpu")
    assert result.metrics["global"]["examples"] == 12
