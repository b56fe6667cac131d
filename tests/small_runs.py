"""Models on disk, rows and configurations of runs that take a second, for tests of whole runs."""

from __future__ import annotations

import csv
import json
import random
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import rondo
from rondo.runs.watching.progress import Quiet

Rows = list[dict[str, Any]]


GOOD, BAD, NEUTRAL = ("good", "great", "fine"), ("bad", "awful", "poor"), ("the", "film", "plot", "was", "very", "a")


POSITIONS = 64


def save_tokenizer(folder: Path, *, pairs: bool) -> int:
    """Save a tokenizer of whole words in ``folder``; return the size of its vocabulary."""
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *GOOD, *BAD, *NEUTRAL]
    inner = Tokenizer(models.WordLevel({w: i for i, w in enumerate(vocabulary)}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    if pairs:
        inner.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]"}
    special |= {"cls_token": "[CLS]", "sep_token": "[SEP]"} if pairs else {"eos_token": "[SEP]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **special).save_pretrained(folder)
    return len(vocabulary)


def save_tiny_bert(folder: Path) -> Path:
    """Save a BERT with random weights, and its tokenizer, for ``from_pretrained``."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=save_tokenizer(folder, pairs=True),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=POSITIONS,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def save_tiny_gpt2(folder: Path) -> Path:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=save_tokenizer(folder, pairs=False), n_embd=32, n_layer=2, n_head=2, n_positions=POSITIONS,
        bos_token_id=3, eos_token_id=3,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


def save_tiny_pythia(folder: Path) -> Path:
    """Save a classifier of the last token; its tokenizer adds no tokens."""
    import transformers

    config = transformers.GPTNeoXConfig(
        vocab_size=save_tokenizer(folder, pairs=False), hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=POSITIONS, bos_token_id=3, eos_token_id=3, pad_token_id=0,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transformers.GPTNeoXForSequenceClassification(config).save_pretrained(folder)
    return folder


class Watch(Quiet):
    """Calls ``started`` with the index of a round that begins, and ``done`` with the number of rounds that are done."""

    def __init__(self, started: Callable[[int], object] = id, done: Callable[[int], object] = id) -> None:
        self.started, self.done = started, done

    def round_started(self, index: int, clients: int) -> None:
        self.started(index)

    def round_done(self, record: Mapping[str, Any]) -> None:
        self.done(record["round"] + 1)


def dying(rounds: int) -> Watch:
    """The end of the program once so many rounds are done."""

    def die(done: int) -> None:
        if done == rounds:
            raise KeyboardInterrupt

    return Watch(done=die)


def stopped(config: Mapping[str, Any], folder: Path, *, at: int = 1, **options: Any) -> Path:
    """The directory of a run that was stopped as round ``at`` began."""
    stop = threading.Event()
    watch = Watch(lambda index: index == at and stop.set())
    with pytest.raises(rondo.RunInterrupted):
        rondo.run(config, run_dir=folder, device="cpu", observer=watch, stop=stop, **options)
    return folder


def reviews(count: int, seed: int = 0) -> Rows:
    """Sentences labelled by the kind of word in them, with their author, whole and in two halves."""
    draw = random.Random(seed)
    rows: Rows = []
    for i in range(count):
        label = i % 2
        words = [*draw.choices(NEUTRAL, k=4), draw.choice((BAD, GOOD)[label])]
        draw.shuffle(words)
        rows.append({"text": " ".join(words), "label": ("neg", "pos")[label], "who": f"site {i % 3}"})
        rows[-1] |= {"first": " ".join(words[:2]), "second": " ".join(words[2:])}
    return rows


LABELLED: dict[str, dict[str, Any]] = {
    "list": {"label": "labels"},
    "joined": {"label": "joined", "label_separator": ";"},
    "columns": {"label": ["neg", "plot", "pos"]},
}
"""The keys of ``[task]`` for the labels of :func:`opinions`, by their form."""


def opinions(count: int, seed: int = 0) -> Rows:
    """Sentences with a label for each kind of word in them: several, one or none. They are a list in ``labels``, joined
    in ``joined``, and columns of 0 and 1."""
    draw = random.Random(seed)
    kinds = {"neg": BAD, "plot": ("plot",), "pos": GOOD}
    rows: Rows = []
    for _ in range(count):
        labels = [name for name in kinds if draw.random() < 0.5]
        words = [*draw.choices(("the", "was", "very", "a"), k=3), *(draw.choice(kinds[name]) for name in labels)]
        draw.shuffle(words)
        rows.append({"text": " ".join(words), "labels": labels, "joined": ";".join(labels)})
        rows[-1] |= {name: int(name in labels) for name in kinds}
    return rows


def write_rows(path: Path, rows: Rows) -> Path:
    """Write ``rows`` in the format that ``path`` ends with; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def files(folder: Path, train: Rows, test: Rows, ending: str = "csv", test_ending: str = "") -> dict[str, Any]:
    """The section ``data`` of a training file and a test file, which are written."""
    source = write_rows(folder / f"train.{ending}", train)
    return {"source": str(source), "test_source": str(write_rows(folder / f"test.{test_ending or ending}", test))}


def copy_of(path: str | Path) -> str:
    """A file with the same rows: as a test set, the file itself is refused."""
    path = Path(path)
    return str(shutil.copy(path, path.with_stem(f"{path.stem}-copy")))


WHOLE: dict[str, Any] = {
    **dict.fromkeys(("rows", "rows_used", "test_rows", "test_rows_used"), 200),
    **dict.fromkeys(("rows_bad", "rows_not_sampled", "rows_without_client", "rows_without_target", "rows_moved"), 0),
    **dict.fromkeys(("test_rows_bad", "test_rows_not_sampled", "test_rows_without_target", "clients_not_sampled"), 0),
    "sampled_by": ["label", "who"],
    "test_sampled_by": ["label"],
    "text": {"rows": 200, "rows_cut": 0, "tokens": 9000, "tokens_lost": 0},
    "test_text": {"rows": 200, "rows_cut": 0, "tokens": 9000, "tokens_lost": 0},
    "clients_too_small": {},
    "clients_without_examples": [],
    "warnings": [],
}
"""The account of rows in ``partition.json`` where all are used whole."""


def settings(folder: Path, **changes: Mapping[str, Any] | int) -> dict[str, Any]:
    """A run of two rounds and three clients with the model in ``folder``; ``changes`` are by section; None
    removes a key."""
    config: dict[str, Any] = {
        "rounds": 2,
        "algorithm": {"name": "fedit"},
        "adapter": {"r": 2, "lora_alpha": 4, "target_modules": ["query", "value"]},
        "model": {"name": str(folder)},
        "task": {"text": "text", "label": "label", "max_length": 32},
        "data": {"validation_fraction": 0.25},
        "partition": {"kind": "iid", "clients": 3},
        "train": {"batch_size": 8, "lr": 0.02, "local_epochs": 2},
    }
    for name, change in changes.items():
        config[name] = {**config.get(name, {}), **change} if isinstance(change, Mapping) else change
        if isinstance(change, Mapping):
            config[name] = {k: v for k, v in config[name].items() if v is not None}
    return config
