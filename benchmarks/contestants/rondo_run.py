"""Rondo: one call of ``rondo.run``."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from contestant import Outcome, arguments, since_start
from contests import WORKS
from rondo_configuration import configuration, trained_numbers

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


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--precision", choices=("exact", "fast"), required=True)
    args = parser.parse_args()

    run = rondo.run  # imports torch, as a user's first line does

    import torch

    torch.set_num_threads(args.threads)
    workload, watch = WORKS[args.work], Watch()
    config = configuration(workload, args.data, args.rounds, args.precision)
    with tempfile.TemporaryDirectory() as folder:
        result = run(config, run_dir=f"{folder}/run", device="cpu", observer=watch)
        numbers = trained_numbers(workload, result.history, Path(folder, "run"))
    if watch.began is None:
        raise SystemExit("no round was started")
    if failed := result.summary["failed_clients"]:
        raise SystemExit(f"{failed} clients failed")
    losses = [record["loss"] for record in result.history]
    Outcome(since_start(watch.began), watch.seconds, losses, numbers).print(workload)


if __name__ == "__main__":
    main()
