"""Seconds from the first import to the first round, many times, in turns with the imports alone.

    python benchmarks/startup.py --turns 5 --json startup.json
    python benchmarks/startup.py --works W2 --before FOLDER      # in turns with another checkout of Rondo

Every start has its own process. The imports alone are torch, a model class of transformers, and PEFT, which every run
needs. They show the machine's speed at that moment, which changes by a third within the hour.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from simulation import machine, versions
from workloads import WORKLOADS, write_rows

HERE = Path(__file__).resolve().parents[1]

IMPORTS = """
import time; began = time.time()
import torch
from transformers import AutoModelForSequenceClassification, BertForSequenceClassification
import peft
print(time.time() - began)
"""

START = """
import time
import contestant, rondo_run

class FirstRound(rondo_run.Watch):
    def round_started(self, index, clients):
        print(contestant.since_start(time.time()), flush=True)
        raise SystemExit

rondo_run.Watch = FirstRound
rondo_run.main()
"""


def seconds(code: str, *arguments: str, threads: int, checkout: Path = HERE) -> float:
    """The number that ``code`` prints last, run with the packages of ``checkout``. Raises SystemExit where it fails."""
    paths = (checkout / "src", checkout / "benchmarks" / "contestants", checkout / "benchmarks")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-c", code, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, env={**environment, "HF_HUB_OFFLINE": "1"})
    if process.returncode != 0:
        raise SystemExit(f"a start failed:\n{process.stderr[-4000:]}")
    return float(process.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--works", default="W,W2,W3,W5", help=f"of {', '.join(WORKLOADS)}; separated by commas")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--before", type=Path, help="another checkout, which takes turns with this one")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    checkouts = {"rondo": HERE, **({"before": args.before.resolve()} if args.before is not None else {})}
    readings: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.turns):
            for work in args.works.split(","):
                data = Path(folder) / f"{work}.csv"
                if not data.exists():
                    write_rows(WORKLOADS[work], data)
                for precision in ("fast", "exact"):
                    readings.setdefault("imports", []).append(seconds(IMPORTS, threads=args.threads))
                    options = ("--work", work, "--rounds", "1", "--threads", str(args.threads), "--data", str(data))
                    for name, checkout in checkouts.items():
                        took = seconds(
                            START, *options, "--precision", precision, threads=args.threads, checkout=checkout
                        )
                        readings.setdefault(f"{name} {work} {precision}", []).append(took)
    result: dict[str, Any] = {
        "seconds": readings,
        "median": {name: statistics.median(times) for name, times in readings.items()},
        "threads": args.threads,
        "machine": machine(),
        "versions": versions(),
    }
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    for name, times in readings.items():
        print(f"{name:20}{statistics.median(times):6.2f} s, of {len(times)}: {min(times):.2f} to {max(times):.2f}")


if __name__ == "__main__":
    main()
