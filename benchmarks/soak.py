"""A thousand rounds with faults, to see whether memory, open files or disk use grow.

    python benchmarks/soak.py --rounds 1000 --json soak.json --png soak.png
    python benchmarks/soak.py --rounds 300 --algorithm flora --per-round 5

Twenty clients train a BERT of two layers with random weights by RoLoRA or another algorithm, with local heads, a
server optimizer where the algorithm allows one, and a checkpoint per round. In every round each client has a fault of
some kind with a probability of 5 %. After every tenth round these are read: memory, open files, the bytes of the run
directory (without ``metrics.jsonl``, which grows by a line per round), and the seconds per round with its checkpoint.
Slopes are those of a straight line through the readings after the first fifth, per hundred rounds: MiB, blocks, bytes
or seconds.

Memory is read in three ways:

- ``rss_mib``: the resident set, which goes up and down with the free memory that glibc keeps
- ``in_use_mib``: the part of glibc's heaps that is in use, tensors above all
- ``python_blocks``: blocks of Python's own allocator
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from simulation import machine, versions

import rondo

EVERY = 10
MEMORY = ("rss_mib", "in_use_mib", "python_blocks")
SLOPES = (*MEMORY, "disk_bytes", "round_seconds")
WORDS = [f"w{i}" for i in range(40)]
SHARE = 0.05


def save_model(folder: Path) -> None:
    """Save a BERT of a few thousand numbers, and a tokenizer of whole words."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    coder = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    coder.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=coder, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
        folder
    )
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)


def write_rows(path: Path, count: int) -> None:
    draw = random.Random(0)
    lines = ["text,label"]
    for i in range(count):
        label = i % 2
        words = draw.choices(WORDS[2:], k=6)
        words[draw.randrange(6)] = WORDS[label]
        lines.append(f"{' '.join(words)},{'ab'[label]}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def configuration(folder: Path, rounds: int, algorithm: str, per_round: int | None) -> dict[str, Any]:
    from rondo import algorithms

    optimizer = algorithms.entry(algorithm).linear and algorithms.entry(algorithm).traits.same_coordinates
    kinds = ("crash", "out_of_memory", "nonfinite_loss", "corrupt_upload", "late", "duplicate", "wrong_round")
    return {
        "rounds": rounds,
        "algorithm": {"name": algorithm},
        "adapter": {"r": 2, "lora_alpha": 4, "target_modules": ["query", "value"]},
        "model": {"name": str(folder / "model"), "head": "local"},
        "task": {"text": "text", "label": "label", "max_length": 16},
        "data": {"source": str(folder / "rows.csv"), "test_source": str(folder / "test.csv"), "max_test_rows": 64},
        "partition": {"kind": "iid", "clients": 20},
        "train": {"batch_size": 8, "lr": 0.01, "local_epochs": 1},
        "clients": {"per_round": per_round} if per_round is not None else {},
        "server": {"optimizer": "momentum" if optimizer else "none"},
        "evaluation": {"every": 50, "diagnostics_every": 50},
        "faults": dict.fromkeys(kinds, SHARE / len(kinds)),
    }


class _Mallinfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "abcdefghij"]  # glibc's: e has mapped bytes, h has others in use


def in_use() -> float:
    """MiB of glibc's heaps in use."""
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Mallinfo
    info = mallinfo()
    return float(info.e + info.h) / 2**20


class Watch(rondo.Observer):
    """Reads the process and its run directory after every tenth round."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.process = folder, psutil.Process()
        self.readings: list[dict[str, float]] = []
        self.failed = 0
        self.last = time.perf_counter()

    def round_done(self, record: dict[str, Any]) -> None:
        self.failed += len(record["failed"])
        if (record["round"] + 1) % EVERY:
            return
        now = time.perf_counter()
        files = [p for p in self.folder.rglob("*") if p.is_file() and p.name != "metrics.jsonl"]
        self.readings.append(
            {
                "round": record["round"] + 1,
                "rss_mib": self.process.memory_info().rss / 2**20,
                "in_use_mib": in_use(),
                "python_blocks": sys.getallocatedblocks(),
                "open_files": self.process.num_fds(),
                "disk_bytes": sum(p.stat().st_size for p in files),
                "files": len(files),
                "round_seconds": (now - self.last) / EVERY,
                "loss": record["loss"],
            }
        )
        self.last = now


def slope(readings: Sequence[dict[str, float]], key: str) -> float:
    """Growth of ``key`` per hundred rounds, after the first fifth."""
    late = readings[len(readings) // 5 :]
    x, y = [r["round"] for r in late], [r[key] for r in late]
    mx, my = sum(x) / len(x), sum(y) / len(y)
    return 100 * sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sum((a - mx) ** 2 for a in x)


def picture(readings: Sequence[dict[str, float]], path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.2))
    for axis, key, label in zip(
        axes, ("rss_mib", "in_use_mib", "files"), ("resident, MiB", "in use, MiB", "files on disk"), strict=True
    ):
        axis.plot([r["round"] for r in readings], [r[key] for r in readings])
        axis.set_xlabel("round")
        axis.set_title(label)
        axis.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--algorithm", default="rolora")
    parser.add_argument("--per-round", type=int, help="clients per round, by default all")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        save_model(folder / "model")
        write_rows(folder / "rows.csv", 400)
        shutil.copy(folder / "rows.csv", folder / "test.csv")
        watch, began = Watch(folder / "run"), time.perf_counter()
        config = configuration(folder, args.rounds, args.algorithm, args.per_round)
        rondo.run(config, run_dir=folder / "run", device="cpu", observer=watch)
        seconds = time.perf_counter() - began
    late = watch.readings[len(watch.readings) // 5 :]
    result = {
        "algorithm": args.algorithm,
        "rounds": args.rounds,
        "seconds": seconds,
        "failed_clients": watch.failed,
        **{f"{key}_slope": slope(watch.readings, key) for key in SLOPES},
        **{key: [min(r[key] for r in late), max(r[key] for r in late)] for key in MEMORY},
        "open_files": sorted({r["open_files"] for r in late}),
        "files": [min(r["files"] for r in late), max(r["files"] for r in late)],
        **{key: [min(r[key] for r in late), max(r[key] for r in late)] for key in ("disk_bytes", "round_seconds")},
        "readings": watch.readings,
        "machine": machine(),
        "versions": versions(),
    }
    print(json.dumps({k: v for k, v in result.items() if k not in ("readings", "versions")}, indent=1))
    if args.json is not None:
        args.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if args.png is not None:
        picture(watch.readings, args.png)


if __name__ == "__main__":
    main()
