"""Where the time of a round goes: the share of each torch operation in the processor's time.

    python benchmarks/profiling.py --work W --clients 4 --precision fast

The second round of a workload is profiled, with fewer clients and on one thread, so that all work is in the profiled
thread. An operation's time excludes the operations that it calls.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from workloads import WORKLOADS, write_rows

import rondo

sys.path.insert(0, str(Path(__file__).with_name("contestants")))


class Profiled(rondo.Observer):
    """Profiles the second round."""

    def __init__(self, profiler: Any) -> None:
        self.profiler, self.seconds = profiler, 0.0

    def round_started(self, index: int, clients: int) -> None:
        if index == 1:
            self.profiler.start()

    def round_done(self, record: dict[str, Any]) -> None:
        if record["round"] == 1:
            self.profiler.stop()
            self.seconds = record["train_seconds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=WORKLOADS, default="W")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--precision", choices=("exact", "fast"), default="fast")
    parser.add_argument("--lines", type=int, default=15)
    args = parser.parse_args()

    run = rondo.run

    import torch
    from rondo_configuration import configuration

    torch.set_num_threads(1)
    workload = replace(WORKLOADS[args.work], clients=args.clients)
    watch = Profiled(torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]))
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "train.csv"
        write_rows(workload, data)
        run(configuration(workload, data, 2, args.precision), run_dir=f"{folder}/run", device="cpu", observer=watch)
    events = watch.profiler.key_averages()
    total = sum(event.self_cpu_time_total for event in events)
    print(f"{watch.seconds:.1f} s with the profiler on; {total / 1e6:.1f} s in torch's operations")
    for event in sorted(events, key=lambda e: e.self_cpu_time_total, reverse=True)[: args.lines]:
        print(f"{event.self_cpu_time_total / total:7.1%}  {event.count:7}  {event.key}")


if __name__ == "__main__":
    main()
