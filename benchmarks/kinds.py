"""Seconds of a round of each kind of task, beside the stock trainer on the same rows.

    pip install --no-deps --target OTHERS trl sentence-transformers
    PYTHONPATH=OTHERS python benchmarks/kinds.py --turns 5 --threads 1 --json kinds.json

With the stock trainer (of transformers, TRL or sentence-transformers, by ``train.trainer``) clients train one after the
other. Models are MiniLM, and a random Llama or ViT of its size. Precision is float32. The row "own trainer" has
transformers' trainer in both: in Rondo's round, and alone in a loop. The rows "magnitudes" have Rondo in both: without
magnitudes (LoRA), and with them (DoRA). A turn runs all programs once, for two rounds, of which the second counts.
Ratios are of one turn, because the machine may be busy; the table has their medians.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

THINGS = (
    "invoice",
    "parcel",
    "refund",
    "contract",
    "booking",
    "ticket",
    "order",
    "bill",
    "letter",
    "key",
    "coat",
    "bag",
)
TEXTS = ("where is my {} now", "please bring the {} to me", "how much does the {} cost", "turn the {} off at noon")


def rows(count: int) -> list[dict[str, Any]]:
    """Rows with the columns of all kinds."""
    draw, made = random.Random(0), []
    for _ in range(count):
        thing, place = draw.choice(THINGS), draw.randrange(len(TEXTS))
        text = " and ".join(TEXTS[place].format(thing) for _ in range(draw.randint(1, 3)))
        words = text.split()
        labels = [name for name in ("cost", "noon", "where") if name in words]
        tags = ["B-THING" if word == thing else "O" for word in words]
        answers = {"chosen": f" thank you , the {thing} comes", "rejected": f" what {thing} ?"}
        row = {"text": text, "intent": str(place), "labels": labels, "tokens": words, "tags": tags, "prompt": text}
        asked = {"question": "which thing is it", "answers": {"text": [thing], "answer_start": [text.index(thing)]}}
        pixels = np.random.default_rng(len(made)).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        row |= {**answers, **asked, "image": pixels}
        made.append({**row, "anchor": text, "positive": f"the {thing} , number {place}"})
    return made


def write_llama(folder: Path, texts: list[str]) -> Path:
    """A random Llama with MiniLM's width and depth, whose tokens are the words of ``texts``."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = sorted({word for text in texts for word in text.split()})
    known = {word: number for number, word in enumerate(["<pad>", "<end>", "<unk>", *words])}
    inner = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<end>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=inner, **special).save_pretrained(folder)
    torch.manual_seed(0)
    shape = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(known), max_position_embeddings=128, **shape, **ids)).save_pretrained(
        folder
    )
    return folder


def write_vit(folder: Path) -> Path:
    """A random ViT with MiniLM's width and depth, for pictures of 32 by 32 in patches of 4."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(0)
    shape = {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6, "num_attention_heads": 12}
    ViTForImageClassification(ViTConfig(image_size=32, patch_size=4, **shape)).save_pretrained(folder)
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return folder


def dpo(local: Any) -> float:
    """TRL's DPOTrainer on the columns of preferences."""
    from rondo import trainers

    return trainers.dpo(local, beta=0.1)


def rewards(local: Any) -> float:
    """TRL's RewardTrainer on the columns of preferences."""
    from datasets import Dataset
    from trl import RewardConfig, RewardTrainer

    pairs = Dataset.from_list([{key: row[key] for key in ("prompt", "chosen", "rejected")} for row in local.rows])
    with tempfile.TemporaryDirectory() as folder:
        arguments = RewardConfig(
            **own_arguments(local, folder), bf16=False, gradient_checkpointing=False, max_length=64
        )
        trainer = RewardTrainer(
            model=local.model, args=arguments, train_dataset=pairs, processing_class=copy.deepcopy(local.tokenizer)
        )
        return float(trainer.train().training_loss)


def own_arguments(local: Any, folder: str) -> dict[str, Any]:
    """Arguments of trainers that ``rondo.trainers`` does not have."""
    return {
        "output_dir": folder,
        "per_device_train_batch_size": local.settings.batch_size,
        "num_train_epochs": local.epochs,
        "learning_rate": local.lr,
        "lr_scheduler_type": "constant",
        "use_cpu": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def sentences(local: Any) -> float:
    """The trainer of sentence-transformers with its loss for pairs."""
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = SentenceTransformer(local.tokenizer.name_or_path, device="cpu")
    model[0].model = local.model
    pairs = Dataset.from_list([{key: row[key] for key in ("anchor", "positive")} for row in local.rows])
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(**own_arguments(local, folder))
        loss = MultipleNegativesRankingLoss(model)
        trainer = SentenceTransformerTrainer(model=model, args=arguments, train_dataset=pairs, loss=loss)
        return float(trainer.train().training_loss)


LOCALS: list[Any] = []
"""What the clients of a round get, which the loop then trains without Rondo."""


def kept(local: Any) -> float:
    """transformers' trainer, on what is kept for the loop."""
    from rondo import trainers

    LOCALS.append(copy.copy(local))
    return trainers.transformers(local)


KINDS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any], str]] = {
    "classification": ("sequence-classification", {"text": "text", "label": "intent"}, "transformers", {}, ""),
    "several labels": ("sequence-classification", {"text": "text", "label": "labels"}, "transformers", {}, ""),
    "entities": ("token-classification", {"tokens": "tokens", "tags": "tags"}, "transformers", {}, ""),
    "question answering": (
        "question-answering",
        {"context": "text", "question": "question", "answers": "answers"},
        "transformers",
        {},
        "",
    ),
    "image labels": ("image-classification", {"image": "image", "label": "labels"}, "transformers", {}, ""),
    "embedding": (
        "embedding",
        {"anchor": "anchor", "positive": "positive"},
        "kinds:sentences",
        {},
        "sentence_transformers",
    ),
    "causal LM": ("causal-lm", {"prompt": "prompt", "response": "chosen"}, "sft", {}, "trl"),
    "preference": (
        "preference",
        {},
        "kinds:dpo",
        {"kind": "causal-lm", "prompt": "prompt", "response": "chosen"},
        "trl",
    ),
    "reward": ("reward", {}, "kinds:rewards", {}, "trl"),
}
"""The kind and its keys, the stock trainer, its own ``[task]`` if it has another, and the package that it needs."""


def round_of(
    task: dict[str, Any], trainer: str | None, args: argparse.Namespace, folder: Path, *, magnitudes: bool = False
) -> float:
    """Seconds of the second round of a run."""
    import rondo

    class Watch(rondo.Observer):
        began, seconds = 0.0, 0.0

        def round_started(self, index: int, clients: int) -> None:
            LOCALS.clear()
            self.began = time.perf_counter()

        def round_done(self, record: dict[str, Any]) -> None:
            self.seconds = time.perf_counter() - self.began

    language = task["kind"] in ("causal-lm", "preference", "reward")
    pictures = task["kind"] == "image-classification"
    targets = ["q_proj", "v_proj"] if language or pictures else ["query", "value"]
    model = str(folder / ("llama" if language else "vit")) if language or pictures else "builtin:minilm"
    watch = Watch()
    with tempfile.TemporaryDirectory() as place:
        rondo.run(
            {
                "rounds": 2,
                "algorithm": {"name": "fedit"},
                "adapter": {"r": 4, "target_modules": targets, "use_dora": magnitudes},
                "model": {"name": model},
                "task": task if pictures else {**task, "max_length": 64},
                "data": {"test_split": "", "validation_fraction": 0.0},
                "partition": {"kind": "iid", "clients": args.clients},
                "train": {"batch_size": 8, "lr": 1e-3, "precision": "exact", "trainer": trainer},
                "evaluation": {"every": 0, "diagnostics_every": 0},
            },
            train=rows(args.clients * args.rows),
            run_dir=f"{place}/run",
            device="cpu",
            observer=watch,
        )
    return watch.seconds


def alone(args: argparse.Namespace) -> float:
    """Seconds of transformers' trainer on what :func:`kept` kept, without Rondo's round around it."""
    from rondo import trainers

    began = time.perf_counter()
    for local in list(LOCALS):
        trainers.transformers(local)
    return time.perf_counter() - began


def programs(args: argparse.Namespace, folder: Path) -> dict[str, tuple[Callable[[], float], Callable[[], float]]]:
    """By row of the table, Rondo's round and the stock one."""
    made: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {}
    for name, (kind, keys, trainer, other, package) in KINDS.items():
        if package and not find_spec(package):
            print(f"{name}: skipped, {package} is not installed", flush=True)
            continue
        task = {"kind": kind, **keys}
        made[name] = (
            lambda task=task: round_of(task, None, args, folder),
            lambda task=other or task, trainer=trainer: round_of(task, trainer, args, folder),
        )
    task = {"kind": "sequence-classification", "text": "text", "label": "intent"}
    language = {"kind": "causal-lm", "prompt": "prompt", "response": "chosen"}
    for name, kind in (("magnitudes, classification", task), ("magnitudes, causal LM", language)):
        made[name] = (
            lambda kind=kind: round_of(kind, None, args, folder),
            lambda kind=kind: round_of(kind, None, args, folder, magnitudes=True),
        )
    made["own trainer"] = (lambda: round_of(task, "kinds:kept", args, folder), lambda: alone(args))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--rows", type=int, default=32, help="per client")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", default="", help="rows of the table whose names have this word")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    sys.modules["kinds"] = sys.modules["__main__"]  # train.trainer names this file
    times: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        write_llama(Path(place, "llama"), [row[key] for row in rows(400) for key in ("prompt", "chosen", "rejected")])
        write_vit(Path(place, "vit"))
        all_programs = programs(args, Path(place))
        for turn in range(args.turns):
            for name, (ours, theirs) in all_programs.items():
                if args.only not in name:
                    continue
                times.setdefault(name, []).append((ours(), theirs()))
                print(f"turn {turn}, {name}: {times[name][-1][0]:.2f} s, {times[name][-1][1]:.2f} s", flush=True)
    table = {
        name: {
            "rondo_s": statistics.median(ours for ours, _ in pairs),
            "stock_s": statistics.median(theirs for _, theirs in pairs),
            "ratio": statistics.median(theirs / ours for ours, theirs in pairs),
            "ratios": sorted(theirs / ours for ours, theirs in pairs),
        }
        for name, pairs in times.items()
    }
    for name, row in table.items():
        print(f"{name:27} {row['rondo_s']:7.2f} s {row['stock_s']:7.2f} s, stock / Rondo {row['ratio']:.2f}")
    if args.json:
        args.json.write_text(
            json.dumps({"clients": args.clients, "rows": args.rows, "rounds": table}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
