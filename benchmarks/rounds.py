"""Seconds per round of every algorithm on the embedded default, beside the floor that the frozen matrices set.

    python benchmarks/rounds.py --rounds 3 --threads 2 --json rounds.json

Floor: the operations of the encoder's frozen matrices on the tokens of a round, padding included, over the rate of
``torch.nn.functional.linear`` on the largest of those matrices at a batch's number of tokens, measured in the same
process. A weight costs two operations per token forward, and two more backward for the gradient of the input above the
lowest adapted layer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch


def linear_rate(tokens: int, inputs: int, outputs: int, seconds: float = 1.0) -> float:
    """Operations per second of one float32 linear layer, forward."""
    x, w = torch.randn(tokens, inputs), torch.randn(outputs, inputs)
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < seconds:
        torch.nn.functional.linear(x, w)
        count += 1
    return count * 2.0 * tokens * inputs * outputs / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--algorithms", nargs="+")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    import rondo
    from rondo import algorithms
    from rondo.config.load import load
    from rondo.data.demo import STARTER
    from rondo.engine.client.trainer import CohortTrainer

    torch.set_num_threads(args.threads)
    config = load(STARTER, [f"rounds={args.rounds}", "evaluation.every=0"])

    tokens: list[int] = []
    to_device = CohortTrainer._to_device

    def counting(self: CohortTrainer, batch: Any, augmenting: Any) -> Any:
        inputs, targets, hidden = to_device(self, batch, augmenting)
        tokens.append(inputs["input_ids"].numel())
        return inputs, targets, hidden

    CohortTrainer._to_device = counting  # type: ignore[method-assign]
    weights = 6 * (4 * 384 * 384 + 2 * 384 * 1536)  # the six layers of MiniLM's encoder
    result: dict[str, Any] = {"threads": args.threads, "torch": torch.__version__, "algorithms": {}}
    print(f"{'algorithm':16} {'s a round':>10} {'floor':>8} {'ratio':>6}")
    for name in args.algorithms or algorithms.names():
        tokens.clear()
        with tempfile.TemporaryDirectory() as folder:
            run = rondo.run(config, sets=[f'algorithm.name="{name}"'], run_dir=f"{folder}/run", device="cpu")
        seconds = statistics.median(r["train_seconds"] for r in run.history)
        rate = linear_rate(round(statistics.mean(tokens)), 384, 1536)
        floor = 4.0 * weights * sum(tokens) / len(run.history) / rate
        result["algorithms"][name] = {"seconds": seconds, "floor": floor, "gflops": rate / 1e9}
        print(f"{name:16} {seconds:10.2f} {floor:8.2f} {seconds / floor:6.2f}", flush=True)
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
