"""Every row of the papers is compared over its methods, on rows and models made here, at the small scale."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rondo
from choice_rows import byte_pairs
from rondo.config.papers import writer
from rondo.config.papers.rows import SETTINGS
from small_runs import reviews, save_tokenizer, write_rows

DEFAULT = ("fedrep/cifar10", "florg/rte", "rolora/qnli-187kb")
ROWS = [name if name in DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in SETTINGS]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models with as many layers as the small scale's, texts, questions and pictures."""
    import transformers

    folder = tmp_path_factory.mktemp("made")
    bert = transformers.BertConfig(
        vocab_size=save_tokenizer(folder / "bert", pairs=True), hidden_size=16, num_hidden_layers=6,
        num_attention_heads=2, intermediate_size=16, max_position_embeddings=128,
    )  # fmt: skip
    coder = byte_pairs(None)
    llama = transformers.LlamaConfig(
        vocab_size=len(coder), hidden_size=16, num_hidden_layers=30, num_attention_heads=2, num_key_value_heads=2,
        intermediate_size=16, max_position_embeddings=160, pad_token_id=0, eos_token_id=1, bos_token_id=1,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.BertForSequenceClassification(bert).save_pretrained(folder / "bert")
        transformers.LlamaForCausalLM(llama).save_pretrained(folder / "llama")
    coder.save_pretrained(folder / "llama")
    draw = np.random.default_rng(0)
    for classes in (10, 100):
        parts = {}
        for part, count in (("train", 600), ("test", 100)):
            parts[f"x_{part}"] = draw.integers(0, 255, (count, 16, 16, 3), dtype=np.uint8)
            parts[f"y_{part}"] = np.arange(count) % classes
        np.savez(folder / f"{classes}.npz", **parts)
    questions = [
        {"context": row["text"], "question": row["first"], "answers": json.dumps([{"text": w, "answer_start": 0}])}
        for row in reviews(80)
        if (w := str(row["text"]).split()[0])
    ]
    write_rows(folder / "questions.jsonl", questions)
    answers = [{"instruction": r["first"], "input": "", "output": r["second"]} for r in reviews(80)]
    write_rows(folder / "answers.jsonl", answers)
    write_rows(folder / "texts.jsonl", reviews(80))
    return folder


def small(name: str, made: Path) -> dict[str, Any]:
    """The row ``name`` at the small scale, with models and data of our own and two rounds."""
    config = tomllib.loads(writer.text(name, "small"))
    task, data = config["task"], config["data"]
    for key in ("subset", "test_split", "more_tests"):
        data.pop(key, None)
    config |= {"rounds": 2}
    if task["kind"] == "image-classification":
        classes = 100 if task["label"] == "fine_label" else 10
        data |= {"source": str(made / f"{classes}.npz"), "max_train_rows": 4 * max(classes, 50), "max_test_rows": 20}
        task |= {"image": "image", "label": "label", "normalize": "half"}
        if config["algorithm"]["name"] == "fedrep":
            data["test_split"] = ""
        return config
    language = task["kind"] == "causal-lm"
    kind = {"causal-lm": "answers", "question-answering": "questions"}.get(task["kind"], "texts")
    if kind == "texts":
        task["text"] = "text" if isinstance(task["text"], str) else ["first", "second"]
    data |= {"source": str(made / f"{kind}.jsonl"), "validation_fraction": 0.2}
    task["max_length"] = 64
    config["model"]["name"] = str(made / ("llama" if language else "bert"))
    config["train"] |= {"local_steps": 1}
    return config


@pytest.mark.parametrize("name", ROWS)
def test_row_is_compared_over_its_methods(name: str, made: Path, tmp_path: Path) -> None:
    comparison = rondo.compare(config=small(name, made), out=tmp_path / "out", device="cpu")
    assert comparison.stopped == []
    assert list(comparison.algorithms) == list(SETTINGS[name].methods)
    scores = {label: (n["test"]["mean"], n["own_rows"]["mean"]) for label, n in comparison.algorithms.items()}
    assert [label for label, pair in scores.items() if pair == (None, None)] == []
