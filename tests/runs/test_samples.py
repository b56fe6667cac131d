"""Sample answers of a run: by the model that is scored, before and after training, also in a resumed run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers
from rich.console import Console
from tokenizers import Tokenizer, decoders, models

import rondo
from outcomes import problems
from rondo.report.terminal import samples_table
from rondo.tasks.language.causal_lm import continuations
from small_runs import POSITIONS, files, reviews, save_tiny_bert, save_tiny_gpt2, settings, stopped

NEW = 6


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_gpt2(tmp_path_factory.mktemp("gpt2"))


def config(model: Path, folder: Path, **changes: Any) -> dict[str, Any]:
    data = files(folder, reviews(24), reviews(9, seed=1))
    base: dict[str, Any] = {
        "data": data,
        "task": {"kind": "causal-lm", "text": None, "label": None, "prompt": "first", "response": "second"},
        "adapter": {"target_modules": ["c_attn"]},
        "train": {"lr": 0.05, "local_epochs": 4, "precision": "exact"},
        "evaluation": {"generate": 4, "max_new_tokens": NEW},
    }
    return settings(model, **{k: {**base.get(k, {}), **changes.get(k, {})} for k in base | changes})


@pytest.fixture(scope="module")
def finished(gpt2: Path, tmp_path_factory: pytest.TempPathFactory) -> rondo.RunResult:
    folder = tmp_path_factory.mktemp("samples")
    return rondo.run(config(gpt2, folder), run_dir=folder / "run", device="cpu")


def test_samples_are_rows_of_the_test_set(finished: rondo.RunResult) -> None:
    """Four of nine rows, spread over them; the expected answer is the whole response."""
    chosen = [reviews(9, seed=1)[i] for i in (0, 2, 4, 6)]
    samples = finished.summary["samples"]
    shown = [(s["prompt"].strip(), s["expected"].strip()) for s in samples]
    assert shown == [(r["first"], r["second"]) for r in chosen]
    assert json.loads((finished.run_dir / "summary.json").read_text())["samples"] == samples


def test_answers_after_are_those_of_the_exported_adapter(finished: rondo.RunResult, gpt2: Path) -> None:
    samples = finished.summary["samples"]
    rows = [reviews(9, seed=1)[i] for i in (0, 2, 4, 6)]
    for key, path in (("after", finished.run_dir), ("after", finished.run_dir / "adapter")):
        made = rondo.predict(path, [{"first": r["first"]} for r in rows], device="cpu", max_new_tokens=NEW)
        assert [s[key] for s in samples] == [m["response"] for m in made]
    assert [s["before"] for s in samples] != [s["after"] for s in samples]


def test_answers_before_are_the_base_models(finished: rondo.RunResult, gpt2: Path) -> None:
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(gpt2).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2)
    for sample in finished.summary["samples"]:
        ids = torch.tensor([tokenizer(sample["prompt"])["input_ids"]])
        made = model.generate(ids, max_new_tokens=NEW, do_sample=False, pad_token_id=0)[0, ids.shape[1] :]
        assert tokenizer.decode(made, skip_special_tokens=True) == sample["before"]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("rounds", [0, 1])
def test_resumed_run_has_the_same_answers(finished: rondo.RunResult, gpt2: Path, tmp_path: Path, rounds: int) -> None:
    stopped(config(gpt2, tmp_path), tmp_path / "run", at=rounds)
    assert rondo.resume(tmp_path / "run").summary["samples"] == finished.summary["samples"]


def test_model_trained_whole_answers(gpt2: Path, tmp_path: Path) -> None:
    changes = {"train": {"what": ["*ln_f*", "*.c_fc.*"]}, "algorithm": {"name": "fedavg"}, "adapter": {"r": 2}}
    raw = config(gpt2, tmp_path, **changes)
    del raw["adapter"]
    result = rondo.run(raw, run_dir=tmp_path / "run", device="cpu")
    rows = [{"first": s["prompt"].strip()} for s in result.summary["samples"]]
    made = rondo.predict(result.run_dir, rows, device="cpu", max_new_tokens=NEW)
    assert [s["after"] for s in result.summary["samples"]] == [m["response"] for m in made]


def test_plain_text_is_cut_in_its_middle(gpt2: Path, tmp_path: Path) -> None:
    raw = config(gpt2, tmp_path, task={"text": "text", "prompt": None, "response": None})
    raw["task"] = {k: v for k, v in raw["task"].items() if v is not None}
    sample = rondo.run({**raw, "rounds": 1}, run_dir=tmp_path / "run", device="cpu").summary["samples"][0]
    assert f"{sample['prompt']} {sample['expected']}" == reviews(9, seed=1)[0]["text"]
    assert len(sample["prompt"].split()) == 3  # of five words and the end


def test_samples_are_shown(finished: rondo.RunResult) -> None:
    samples = [{**s, "before": "one\ntwo", "after": "<b>\x1b[2J"} for s in finished.summary["samples"]] * 2
    console = Console(width=200, record=True, markup=False)
    console.print(samples_table(samples))
    text = console.export_text()
    assert "the first 5 of 8 in summary.json" in " ".join(text.split())
    assert "\\x1b[2J" in text
    assert not any("one" in line and "two" in line for line in text.splitlines())
    html = rondo.RunResult([], finished.run_dir, {}, {**finished.summary, "samples": samples})._repr_html_()
    assert "&lt;b&gt;" in html
    assert "one<br>two" in html
    assert "<b>" not in html


def problem(raw: dict[str, Any], key: str) -> str:
    return problems(lambda: rondo.run(raw, device="cpu"))[key]


def test_answers_that_cannot_be_given_are_refused(gpt2: Path, tmp_path: Path) -> None:
    raw = config(gpt2, tmp_path)
    without = {**raw, "data": {k: v for k, v in raw["data"].items() if k != "test_source"}}
    assert "no test set" in problem(without, "evaluation.generate")
    long = {**raw, "task": {**raw["task"], "max_length": POSITIONS - NEW + 1}}
    assert f"takes {POSITIONS}: lower one" in problem(long, "evaluation.max_new_tokens")
    bert = settings(save_tiny_bert(tmp_path / "bert"), data=raw["data"], evaluation={"generate": 1})
    assert "generates no text" in problem(bert, "evaluation.generate")


def test_continuation_keeps_the_blanks_that_it_begins_with() -> None:
    """Llama's tokenizer reads no blank at the start of a text, and code begins with some."""
    words = ["[PAD]", "[UNK]", "\u2581", "def", "return", "x", ":", "\n"]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    inner.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    coder = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]")
    prompt, made = [3, 2, 5, 6, 7], [2, 2, 4, 2, 5]
    assert coder.decode(made) == " return x"
    assert continuations(coder, [prompt, []], [made, made]) == ["  return x", " return x"]
