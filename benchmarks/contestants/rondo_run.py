"""Rondo: one call of ``rondo.run``."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from contestant import Outcome, arguments, since_start
from workloads import TOKENS, WORKLOADS, Workload, model_folder

import rondo


class Watch(rondo.Observer):
    """Notes the start of the first round, and the seconds of each round until it is on disk."""

    def __init__(self) -> None:
        self.began: float | None = None
        self.seconds: list[float] = []
        self._started = 0.0

    def round_started(self, index: int, clients: int) -> None:
        self._started = time.perf_counter()
        if self.began is None:
            self.began = time.time()

    def round_done(self, record: dict[str, Any]) -> None:
        self.seconds.append(time.perf_counter() - self._started)


def configuration(workload: Workload, data: Path, rounds: int, precision: str) -> dict[str, Any]:
    """The run as a configuration: FedAvg of both factors and the head."""
    classify = workload.kind == "sequence-classification"
    return {
        "seed": workload.seed,
        "rounds": rounds,
        "algorithm": {"name": "fedit"},
        "adapter": {
            "r": workload.rank,
            "lora_alpha": float(workload.alpha),
            "target_modules": list(workload.targets),
            "layers_to_transform": None if workload.layers is None else list(workload.layers),
        },
        "model": {"name": model_folder(workload), "head": "shared" if classify else None},
        "task": {
            "kind": workload.kind,
            "text": "text",
            "label": "label" if classify else None,
            "max_length": TOKENS,
        },
        "data": {"source": str(data), "test_split": "", "validation_fraction": 0.0},
        "partition": {"kind": "natural", "column": "client"},
        "train": {
            "lr": workload.lr,
            "batch_size": workload.batch,
            "local_epochs": 1 if workload.steps is None else None,
            "local_steps": workload.steps,
            "max_grad_norm": workload.clip,
            "precision": precision,
        },
        "evaluation": {"every": 0},
    }


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--precision", choices=("exact", "fast"), required=True)
    args = parser.parse_args()

    run = rondo.run  # imports torch, as a user's first line does

    import torch

    torch.set_num_threads(args.threads)
    workload, watch = WORKLOADS[args.work], Watch()
    config = configuration(workload, args.data, args.rounds, args.precision)
    with tempfile.TemporaryDirectory() as folder:
        result = run(config, run_dir=f"{folder}/run", device="cpu", observer=watch)
    if watch.began is None:
        raise SystemExit("no round was started")
    if failed := result.summary["failed_clients"]:
        raise SystemExit(f"{failed} clients failed")
    history = result.history
    Outcome(
        since_start(watch.began),
        watch.seconds,
        [r["loss"] for r in history],
        history[0]["bytes_up"] // history[0]["sampled"] // 4,
    ).print(workload)


if __name__ == "__main__":
    main()
