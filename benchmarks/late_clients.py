"""Simulated seconds until 70 % of the demo's test rows are right, with one home of twelve ten times slower.

    python benchmarks/late_clients.py --seeds 0 1 2 --out late.json --picture late.png

Rounds that wait for every home; rounds with a deadline that the others meet; and buffered rounds of four uploads. A
round takes as long as its slowest home, or the deadline; a buffered one's seconds are in its record.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from itertools import accumulate
from pathlib import Path
from typing import Any

import rondo
from rondo.config import load
from rondo.report import drawing

SLOW, DEADLINE, TARGET = "home-05", 200.0, 0.7
DEMO: dict[str, Any] = {
    "algorithm": {"name": "rolora"},
    "adapter": {"r": 8, "lora_alpha": 16, "target_modules": ["query", "value"]},
    "model": {"name": "builtin:minilm"},
    "data": {"source": "builtin:home-intents"},
    "train": {"lr": 1e-2, "batch_size": 16},
    "faults": {"slow": [SLOW], "slow_factor": 10.0},
}
"""The configuration of rondo demo. A home takes a second for each of its rows, and the slow one ten."""
ARMS: dict[str, dict[str, Any]] = {
    "waiting": {"deadline": 1e6},
    "deadline": {"deadline": DEADLINE},
    "buffered": {"mode": "buffered", "buffer": 4},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, default=12, help="each of the uploads of twelve homes")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    curves = {arm: [_curve(arm, seed, args.rounds) for seed in args.seeds] for arm in ARMS}
    for arm, found in curves.items():
        reached = [next((s for s, accuracy in curve if accuracy >= TARGET), None) for curve in found]
        print(f"{arm}: seconds to {TARGET:.0%}: {reached}; at the end {[round(c[-1][1], 3) for c in found]}")
    args.out.write_text(json.dumps(curves), encoding="utf-8")
    if args.picture is not None:
        args.picture.write_bytes(_picture(curves))


def _curve(arm: str, seed: int, rounds: int) -> list[tuple[float, float]]:
    """Simulated seconds since the start, and the accuracy on the test rows, after each round."""
    rounds = rounds * 12 // ARMS[arm].get("buffer", 12)
    config = load({**DEMO, "seed": seed, "rounds": rounds, "clients": ARMS[arm]})
    with tempfile.TemporaryDirectory() as folder:
        history = rondo.run(config, run_dir=f"{folder}/run").history
        rows = json.loads(Path(folder, "run", "partition.json").read_text(encoding="utf-8"))["clients"]
    slowest = max(float(rows[home]["train"]) * (10 if home == SLOW else 1) for home in rows)
    seconds = list(accumulate(min(slowest, ARMS[arm].get("deadline", slowest)) for _ in history))
    if arm == "buffered":
        seconds = [record["measures"]["simulated_seconds"] for record in history]
    return [(s, record["scores"]["global"]["accuracy"]) for s, record in zip(seconds, history, strict=True)]


def _picture(curves: dict[str, list[list[tuple[float, float]]]]) -> bytes:
    figure, axes = drawing.canvas(6.4, 4)
    for arm, found in curves.items():
        axes.plot(*zip(*found[0], strict=True), label=arm)
    axes.set_xlabel("simulated seconds")
    axes.set_ylabel("accuracy on the test rows")
    axes.legend()
    return drawing.png(figure)


if __name__ == "__main__":
    main()
