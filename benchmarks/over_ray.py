"""A round over Ray beside the same round in one process: seconds, bytes moved, and whether the results are equal.

    pip install -e '.[ray]'
    python benchmarks/over_ray.py --work W --rounds 5 --threads 2 --workers 2 --passes 2

The places take turns. The first round of a run stands apart: over Ray it waits for the workers to load the model and
the rows. Bytes are those of jobs and answers, counted where they are sent.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "contestants"))

import torch
from contests import WORKS, contest_of
from rondo_configuration import configuration

import rondo
from rondo.runs.workers import ray as over_ray


class Watch(rondo.Observer):
    """Seconds of every round until it is on the disk."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def round_started(self, index: int, clients: int) -> None:
        self._began = time.perf_counter()

    def round_done(self, record: dict[str, Any]) -> None:
        self.seconds.append(time.perf_counter() - self._began)


class Counting(over_ray.RayWorkers):
    """Counts the bytes of jobs and answers."""

    moved = 0

    def keep(self, common: bytes) -> Any:
        Counting.moved += len(common)
        return super().keep(common)

    def send(self, worker: int, number: int, job: bytes, common: Any, threads: int) -> None:
        Counting.moved += len(job)
        super().send(worker, number, job, common, threads)

    def replies(self, seconds: float) -> Any:
        replies = super().replies(seconds)
        Counting.moved += sum(len(reply.answers or b"") for reply in replies)
        return replies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=list(WORKS), default="W")
    parser.add_argument("--precision", choices=("exact", "fast"), default="exact")
    for name, default in (("rounds", 5), ("threads", 2), ("workers", 2), ("passes", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--cohort", default="auto", help="simulation.cohort")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    over_ray.RayWorkers = Counting  # type: ignore[misc]
    work, seconds, first, digests = WORKS[args.work], {"process": [], "ray": []}, {"process": [], "ray": []}, set()
    with tempfile.TemporaryDirectory() as folder:
        contest = contest_of(work)
        data = Path(folder, contest.data)
        contest.write(work, data)
        config = configuration(work, data, args.rounds, args.precision)
        for turn in range(args.passes):
            for place in seconds:
                sets = [f"simulation.engine={place}", f"simulation.cohort={args.cohort}"]
                sets += [f"simulation.workers={args.workers}"] if place == "ray" else []
                watch, run_dir = Watch(), Path(folder, f"{place}-{turn}")
                rondo.run(config, sets=sets, run_dir=run_dir, device="cpu", observer=watch)
                first[place].append(watch.seconds[0])
                seconds[place] += watch.seconds[1:]
                digests.add(tuple(f.read_bytes() for f in sorted((run_dir / "adapter").rglob("*.safetensors"))))
    medians = {place: statistics.median(times) for place, times in seconds.items()}
    result = {
        "arguments": vars(args),
        "seconds": medians,
        "all_seconds": seconds,
        "first_round": first,
        "overhead_seconds": medians["ray"] - medians["process"],
        "megabytes_a_round": Counting.moved / (args.passes * args.rounds * 1e6),
        "equal": len(digests) == 1,
    }
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
