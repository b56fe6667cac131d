"""Seconds and memory per round against the size of the population and the number of clients per round.

    python benchmarks/population.py --clients 1000 10000 100000 --rounds 10 --json population.json --plot population.png
    python benchmarks/population.py --clients 20000 --per-round 10 100 1000 --algorithm fedit --json cohort.json
    python benchmarks/population.py --kind heads --clients 100 1000 10000 --per-round 20 --rounds 50 --json heads.json
    python benchmarks/population.py --kind models --clients 100 1000 10000 --per-round 5 --rounds 20 --json models.json

The same rows (two for each client of the largest population) are dealt to more and more clients. Each client takes one
local step on two rows, and nothing is evaluated. Personal tensors stay with the clients, on the disk, and must not stay
in memory. ``populations.py`` has the kinds of clients. Each population runs in its own process. The resident set is
read after every round; its peak is that of the process. At the end the clients' files and their size are counted. A
personal ResNet-18 has 45 MB, so 20 rounds of five clients write up to 4.5 GB. The folder is removed after each run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from populations import KINDS, Kind
from simulation import machine, versions

import rondo


class Watch(rondo.Observer):
    """Notes the start-up, the end of every round with all its work, and the resident set at that moment."""

    def __init__(self) -> None:
        self.began, self.first, self.resident = time.perf_counter(), 0.0, list[float]()
        """The moment of the start; seconds from it to the first round; MB after every round."""
        self.ended = list[float]()
        """The moment when each round was done."""

    def round_started(self, index: int, clients: int) -> None:
        self.first = self.first or time.perf_counter() - self.began

    def round_done(self, record: dict[str, Any]) -> None:
        import psutil

        self.resident.append(psutil.Process().memory_info().rss / 2**20)
        self.ended.append(time.perf_counter())


def one(kind: Kind, clients: int, per_round: int, rows: int, rounds: int, threads: int, method: str) -> dict[str, Any]:
    """Run one population in this process."""
    import torch

    torch.set_num_threads(threads)
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, kind.data)
        kind.write(data, clients, rows)
        watch.began = time.perf_counter()
        rondo.run(
            {
                "rounds": rounds,
                "algorithm": {"name": method},
                "data": {"source": str(data), "test_split": "", "validation_fraction": 0.0},
                "clients": {"per_round": per_round},
                "train": {"batch_size": 2, "local_steps": 1},
                "evaluation": {"every": 0, "clients_every": 0, "diagnostics_every": 0},
                **kind.config(clients),
            },
            run_dir=f"{folder}/run",
            device="cpu",
            observer=watch,
        )
        kept = [path.stat().st_size for path in Path(folder, "run").rglob("clients/*.safetensors")]
    seconds = [after - before for before, after in itertools.pairwise(watch.ended)]
    return {
        "clients": clients,
        "per_round": per_round,
        "startup_seconds": watch.first,
        "round_seconds": seconds,
        "seconds_per_round": statistics.median(seconds),
        "resident_mb": watch.resident,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10,
        "kept_files": len(kept),
        "kept_mb": sum(kept) / 2**20,
        "growth_mb_per_round": (watch.resident[-1] - watch.resident[1]) / max(1, rounds - 2),
    }


def plot(results: list[dict[str, Any]], path: Path) -> None:
    """Plot seconds per round and resident memory over the population."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    sizes = [r["clients"] for r in results]
    for axis, values, title in (
        (axes[0], [r["seconds_per_round"] for r in results], f"seconds a round of {results[0]['per_round']} clients"),
        (axes[1], [r["resident_mb"][-1] for r in results], "resident memory after the last round, MB"),
    ):
        axis.plot(sizes, values, marker="o")
        axis.set_xscale("log")
        axis.set_ylim(0, 1.3 * max(values))
        axis.set_xlabel("clients in the population")
        axis.set_title(title, loc="left", fontsize=10)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--per-round", type=int, nargs="+", default=[100], help="several: not with --plot")
    parser.add_argument("--rows", type=int, help="default: two for each client of the largest population")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kind", choices=KINDS, default="adapters")
    parser.add_argument("--algorithm", help="default: fedsa-lora, fedrep or local, by the kind")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    rows = args.rows or 2 * max(args.clients)
    kind = KINDS[args.kind]
    method = args.algorithm or kind.algorithm
    if args.one is not None:
        print(json.dumps(one(kind, args.one, args.per_round[0], rows, args.rounds, args.threads, method)))
        return
    results = []
    if args.plot and len(args.per_round) > 1:
        parser.error("--plot shows one number of clients a round")
    heads = (
        f"{'clients':>8} {'of them':>8} {'start s':>8} {'s a round':>10} {'MB':>7} {'MB a round':>11} {'peak MB':>8}"
    )
    print(f"{heads} {'files':>6} {'MB on disk':>11}")
    for clients, per_round in itertools.product(args.clients, args.per_round):
        command = [sys.executable, __file__, "--one", clients, "--per-round", per_round]
        command += ["--rows", rows, "--rounds", args.rounds]
        command += ["--threads", args.threads, "--kind", args.kind, "--algorithm", method]
        process = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True, env=os.environ)
        run = json.loads(process.stdout.splitlines()[-1])
        results.append(run)
        figures = f"{run['startup_seconds']:8.1f} {run['seconds_per_round']:10.2f} {run['resident_mb'][-1]:7.0f}"
        figures += f" {run['growth_mb_per_round']:11.2f} {run['peak_mb']:8.0f}"
        figures += f" {run['kept_files']:6} {run['kept_mb']:11.1f}"
        print(f"{clients:8} {per_round:8} {figures}", flush=True)
    if args.json:
        result = {"kind": args.kind, "algorithm": method, "rows": rows, "runs": results}
        result |= {"threads": args.threads, "machine": machine(), "versions": versions()}
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if args.plot:
        plot(results, args.plot)


if __name__ == "__main__":
    main()
