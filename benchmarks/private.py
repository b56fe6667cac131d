"""Seconds of a round with example-level privacy beside one without, and beside a loop with opacus.

    python benchmarks/private.py --work W --passes 3 --rounds 2

Each contestant runs alone in a fresh process on `--threads`; they take turns. Seconds are those of the processor, since
a shared machine's clock counts its other work too; the clock's are beside them. opacus is asked where it is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from workloads import WORKLOADS, Workload, write_rows

PRIVACY = {"adversary": "server", "unit": "example", "clip": 1.0, "noise": 1.0, "delta": 1e-5}


def rondo_rounds(workload: Workload, data: Path, rounds: int, precision: str, *, private: bool) -> list[list[float]]:
    """Seconds of every round, of the processor and of the clock."""
    sys.path.append(str(Path(__file__).parent / "contestants"))
    from rondo_configuration import configuration

    import rondo
    from rondo.engine.server.rounds import Server

    config = configuration(workload, data, rounds, precision)
    config["clients"] = {"weighting": "uniform"}
    config["evaluation"] = {"every": 0, "diagnostics_every": 0}
    if private:
        config["train"]["max_grad_norm"] = 0.0
        config["privacy"] = PRIVACY
        if workload.kind == "sequence-classification":
            config["task"]["labels"] = ["0", "1"]
    config = {s: {k: v for k, v in c.items() if v is not None} if isinstance(c, dict) else c for s, c in config.items()}
    seconds, original = [], Server.run_round

    def timed(self: Server, *args: Any) -> dict[str, Any]:
        began = time.process_time(), time.perf_counter()
        record = original(self, *args)
        seconds.append([time.process_time() - began[0], time.perf_counter() - began[1]])
        return record

    Server.run_round = timed  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as folder:
        rondo.run(config, run_dir=Path(folder, "run"), device="cpu")
    return seconds


def opacus_rounds(workload: Workload, data: Path, rounds: int) -> list[list[float]]:
    """A loop over clients with PEFT and opacus, each with its own optimizer, from the shared adapter."""
    from opacus import GradSampleModule
    from opacus.data_loader import DPDataLoader
    from opacus.optimizers import DPOptimizer

    sys.path.append(str(Path(__file__).parent / "contestants"))
    from adapters import build_model, clients

    model = GradSampleModule(build_model(workload).train())
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    start = {n: p.detach().clone() for n, p in trained.items()}
    seconds = []
    for _ in range(rounds):
        began = time.process_time(), time.perf_counter()
        datasets, sums = clients(workload, data), {n: torch.zeros_like(t) for n, t in start.items()}
        for dataset in datasets:
            with torch.no_grad():
                for name, parameter in trained.items():
                    parameter.copy_(start[name])
            loader = torch.utils.data.DataLoader(dataset, batch_size=workload.batch)
            optimizer = DPOptimizer(
                torch.optim.AdamW(trained.values(), lr=workload.lr, weight_decay=0.0),
                noise_multiplier=1.0,
                max_grad_norm=1.0,
                expected_batch_size=workload.batch,
            )
            for ids, mask, labels in DPDataLoader.from_data_loader(loader):
                optimizer.zero_grad()
                if len(labels):
                    model(input_ids=ids, attention_mask=mask, labels=labels).loss.backward()
                    optimizer.step()
            for name, parameter in trained.items():
                sums[name] += parameter.detach()
        start = {n: t / len(datasets) for n, t in sums.items()}
        seconds.append([time.process_time() - began[0], time.perf_counter() - began[1]])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=WORKLOADS, default="W")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", choices=("exact", "fast"), default="exact")
    parser.add_argument("--only", choices=("plain", "private", "opacus"), help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    workload = WORKLOADS[options.work]
    if options.only is not None:
        torch.set_num_threads(options.threads)
        if options.only == "opacus":
            print(json.dumps(opacus_rounds(workload, options.data, options.rounds)))
        else:
            private = options.only == "private"
            print(json.dumps(rondo_rounds(workload, options.data, options.rounds, options.precision, private=private)))
        return
    names = ["plain", "private", *(["opacus"] if importlib.util.find_spec("opacus") else [])]
    seconds: dict[str, list[list[float]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "rows.csv")
        write_rows(workload, data)
        for _ in range(options.passes):
            for name in names:
                command = [sys.executable, __file__, "--only", name, "--work", options.work, "--data", str(data)]
                command += ["--rounds", str(options.rounds), "--precision", options.precision]
                command += ["--threads", str(options.threads)]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                seconds[name] += json.loads(done.stdout.strip().splitlines()[-1])
    plain = [statistics.median(column) for column in zip(*seconds["plain"], strict=True)]
    for name, rounds in seconds.items():
        cpu, clock = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{options.work} {options.precision}, {options.threads} threads, {name}: "
              f"{cpu:.2f} s of the processor a round ({cpu / plain[0]:.2f} times), "
              f"{clock:.2f} s of the clock ({clock / plain[1]:.2f} times)")  # fmt: skip


if __name__ == "__main__":
    main()
