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
from choice_rows import COMMONSENSE, byte_pairs, commonsense
from leaf_files import femnist, sent140, write_leaf
from rondo.config.papers import writer
from rondo.config.papers.writer import SETTINGS
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
    tokens = {"vocab_size": len(coder), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "max_position_embeddings": 160}
    llama = transformers.LlamaConfig(
        **tokens, **sizes, num_hidden_layers=30, num_key_value_heads=1, intermediate_size=16
    )
    opt = transformers.OPTConfig(**tokens, **sizes, num_hidden_layers=12, ffn_dim=16, word_embed_proj_dim=16)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.BertForSequenceClassification(bert).save_pretrained(folder / "bert")
        transformers.LlamaForCausalLM(llama).save_pretrained(folder / "llama")
        transformers.OPTForCausalLM(opt).save_pretrained(folder / "opt")
    coder.save_pretrained(folder / "llama")
    coder.save_pretrained(folder / "opt")
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
    write_rows(folder / "choices.json", [row for task in COMMONSENSE for row in commonsense(task, 10)])
    for task in COMMONSENSE:
        write_rows(folder / "tests" / f"{task}.json", commonsense(task, 2, seed=1))
    for name, users in (("femnist", femnist), ("sent140", sent140)):
        write_leaf(folder / name / "train" / "a.json", users(12, 8))
        write_leaf(folder / name / "test" / "a.json", users(12, 2, seed=1))
    return folder


MADE_MODELS = {"builtin:minilm": "bert", "facebook/opt-125m": "opt", "HuggingFaceTB/SmolLM2-135M": "llama"}
MADE_ROWS = {"causal-lm": "answers.jsonl", "question-answering": "questions.jsonl", "multiple-choice": "choices.json"}


def small(name: str, made: Path) -> dict[str, Any]:
    """The row ``name`` at the small scale, with models and data of our own and two rounds."""
    config = tomllib.loads(writer.text(name, "small"))
    task, data, model = config["task"], config["data"], config["model"]
    config |= {"rounds": 2}
    clients, partition = config["clients"], config["partition"]  # few, since each row has many runs
    partition["clients"] = min(partition["clients"], 4)
    if "per_round" in clients:
        clients["per_round"] = 2
    if name not in DEFAULT:
        config.setdefault("evaluation", {})["diagnostics_every"] = 0
    if name in ("fedrep/femnist", "fedrep/sent140"):
        data["source"] = str(made / name.partition("/")[2])
        return config
    more_tests = data.pop("more_tests", {})
    for key in ("subset", "test_split"):
        data.pop(key, None)
    if task["kind"] == "image-classification":
        classes = 100 if task["label"] == "fine_label" else 10
        data |= {"source": str(made / f"{classes}.npz"), "max_train_rows": 2 * max(classes, 40), "max_test_rows": 20}
        task |= {"image": "image", "label": "label", "normalize": "half"}
        if "resnet" in model["name"]:  # which takes any size; the convolutional network takes 16 pixels and more
            task["image_size"] = 8
        return config
    if task["kind"] == "sequence-classification":
        task["text"] = "text" if isinstance(task["text"], str) else ["first", "second"]
    data |= {"source": str(made / MADE_ROWS.get(task["kind"], "texts.jsonl")), "validation_fraction": 0.2}
    if task["kind"] == "multiple-choice":
        data["test_source"] = str(made / "tests" / "boolq.json")
        others = [made / "tests" / f"{name}.json" for name in COMMONSENSE if name != "boolq"]
        data["more_tests"] = dict(zip(more_tests, map(str, others), strict=True))
    task["max_length"] = 64
    model["name"] = str(made / MADE_MODELS[model["name"]])
    config["train"] |= {"local_steps": 1}
    return config


@pytest.mark.slow
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.usefixtures("no_pictures")
def test_row_is_compared_over_its_methods(name: str, made: Path, tmp_path: Path) -> None:
    comparison = rondo.compare(config=small(name, made), out=tmp_path / "out", device="cpu")
    assert comparison.stopped == []
    assert list(comparison.algorithms) == list(SETTINGS[name].methods)
    scores = {label: (n["test"]["mean"], n["own_rows"]["mean"]) for label, n in comparison.algorithms.items()}
    assert [label for label, pair in scores.items() if pair == (None, None)] == []
