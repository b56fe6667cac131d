"""Peak memory and time of training steps on long rows: SmolLM2-135M, with the means of using less memory.

    python benchmarks/long_rows.py --tokens 4096 --rows 1 --threads 1 --settings plain checkpointing
    python benchmarks/long_rows.py --tokens 512 --rows 8 --threads 1 --settings plain micro_batch=2 checkpointing

Every setting runs alone in a fresh process: one client, a step per round. The time is the shortest round's. The memory
is the process's peak resident set, beside what it was before the first round (libraries, model, adapter).
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from workloads import WORDS, WORKLOADS, model_folder, tokenizer


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def one(args: argparse.Namespace) -> dict[str, Any]:
    """Run a setting in this process."""
    import rondo

    run = rondo.run

    import torch

    torch.set_num_threads(args.threads)

    class Watch(rondo.Observer):
        before, began, seconds = 0.0, 0.0, float("inf")

        def round_started(self, index: int, clients: int) -> None:
            self.began = time.perf_counter()
            self.before = self.before or _peak_mb()

        def round_done(self, record: dict[str, Any]) -> None:
            self.seconds = min(self.seconds, time.perf_counter() - self.began)

    workload, watch, draw = WORKLOADS["W4"], Watch(), random.Random(0)
    coder, words = tokenizer(workload), WORDS.split()
    texts = []
    while len(texts) < args.rows:
        ids = coder(" ".join(draw.choices(words, k=2 * args.tokens)))["input_ids"][: args.tokens]
        texts.append(coder.decode(ids))
    train: dict[str, Any] = {"batch_size": args.rows, "lr": 1e-3, "precision": args.precision}
    model = {"name": model_folder(workload)}
    for setting in args.settings:
        key, _, value = setting.partition("=")
        if key == "quantization":
            model[key] = value
        elif setting != "plain":
            train[key] = int(value) if value else True
    with tempfile.TemporaryDirectory() as folder:
        result = run(
            {
                "rounds": args.rounds,
                "algorithm": {"name": "fedit"},
                "adapter": {"r": 4, "target_modules": list(workload.targets)},
                "model": model,
                "task": {"kind": "causal-lm", "text": "text", "max_length": args.tokens},
                "data": {"test_split": "", "validation_fraction": 0.0},
                "partition": {"kind": "iid", "clients": 1},
                "train": train,
                "evaluation": {"every": 0, "diagnostics_every": 0},
            },
            train=[{"text": text} for text in texts],
            run_dir=f"{folder}/run",
            device="cpu",
            observer=watch,
        )
        losses = [record["loss"] for record in result.history]
    return {
        "settings": args.settings,
        "seconds": watch.seconds,
        "before_mb": watch.before,
        "peak_mb": _peak_mb(),
        "loss": losses,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=("exact", "fast"), default="fast")
    parser.add_argument("--settings", nargs="+", default=["plain"], help="plain, or keys of [train] and quantization")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        print(json.dumps(one(args)))
        return
    model_folder(WORKLOADS["W4"])
    for setting in args.settings:
        own = [sys.executable, str(Path(__file__)), "--here", "--settings", *setting.split(",")]
        for key in ("tokens", "rows", "rounds", "threads", "precision"):
            own += [f"--{key}", str(getattr(args, key))]
        done = subprocess.run(own, capture_output=True, text=True)
        line = done.stdout.strip().splitlines()[-1] if done.returncode == 0 else f"failed: {done.stderr[-300:]}"
        print(line, flush=True)


if __name__ == "__main__":
    main()
