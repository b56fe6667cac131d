"""Rondo beside other simulators of federated learning on one machine: the same model, rows, steps and threads.

    pip install -r benchmarks/requirements.txt          # after the steps that the file lists
    python benchmarks/simulation.py --work W --against loop,flower --rounds 5 --threads 2 --json w.json

Works W to W5 and W9 train adapters on a language model, W6 and W7 whole networks on pictures, and W8 a linear problem
(``workloads.py``, ``image_workloads.py``, ``linear_workload.py``).

Every contestant runs alone in a fresh process. Seconds per round are the median over the rounds. Memory is the peak of
the sum over the process and all that it started, as resident set size (shared pages counted in each process) and as
proportional set size (shared pages counted once). Start-up lasts from the first import to the first round.
``--passes N`` lets the contestants take turns N times, each time in fresh processes, and pools their rounds: for
machines whose speed drifts over minutes (neighbours on a shared host).
The floor is that of ``floor.py``: the operations that a sample needs over the rate of this machine's matrix products.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
from contests import PEERS, WORKS, Contest, Work, contest_of
from workloads import Workload

_MARK = "RONDO_BENCHMARK"
_RSS_SECONDS, _LOOK_SECONDS, _PSS_SECONDS = 0.1, 0.5, 10.0
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SETTLED_SECONDS = 2.0
"""A process younger than this is looked at again: its environment cannot be read in its first moments."""


@dataclass
class Memory:
    """Peak memory of a process and all that it started: processes whose parent is one of them, or that carry its mark
    in their environment (Ray's may outlive their parent).

    Watching must not slow the watched processes down. Resident sizes are read from ``statm`` ten times per second, and
    new processes are looked for twice per second. Proportional sizes are read only every ten seconds, because the
    kernel walks all pages for them and keeps the process from mapping more.
    """

    root: psutil.Process
    mark: str
    peak_rss: int = 0
    peak_pss: int = 0
    _mine: set[int] = field(init=False)
    _others: set[int] = field(default_factory=set)
    _next_look: float = 0.0
    _next_pss: float = field(default_factory=lambda: time.monotonic() + _PSS_SECONDS)

    def __post_init__(self) -> None:
        self._mine = {self.root.pid}

    def sample(self) -> None:
        """Look for new processes and add up all sizes, each when it is due."""
        now = time.monotonic()
        if now >= self._next_look:
            self._look()
            self._next_look = now + _LOOK_SECONDS
        self.peak_rss = max(self.peak_rss, sum(map(_resident, self._mine)))
        if now >= self._next_pss:
            self.peak_pss = max(self.peak_pss, sum(map(_proportional, self._mine)))
            self._next_pss = now + _PSS_SECONDS

    def _look(self) -> None:
        pids = set(psutil.pids())
        self._others &= pids
        self._mine &= pids
        for pid in sorted(pids - self._others - self._mine):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if self._belongs(process):
                    self._mine.add(pid)
                elif time.time() - process.create_time() > _SETTLED_SECONDS:
                    self._others.add(pid)

    def _belongs(self, process: psutil.Process) -> bool:
        if process.ppid() in self._mine:
            return True
        try:
            return process.environ().get(_MARK) == self.mark
        except psutil.AccessDenied:
            return False


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1]) * _PAGE
    except OSError:  # the process is gone
        return 0


def _proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def run_contestant(
    python: str, script: str, workload: Work, rounds: int, threads: int, data: Path, *extra: str
) -> dict[str, Any]:
    """Run one contestant and watch its memory. Raises SystemExit with the end of its errors where it fails."""
    command = [python, str(Path(__file__).parent / "contestants" / f"{script}.py")]
    command += ["--work", workload.name, "--rounds", str(rounds), "--threads", str(threads), "--data", str(data)]
    mark = uuid.uuid4().hex
    environment = {**os.environ, _MARK: mark, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen([*command, *extra], stdout=out, stderr=err, env=environment)
        memory = Memory(psutil.Process(process.pid), mark)
        try:
            while process.poll() is None:
                memory.sample()
                time.sleep(_RSS_SECONDS)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        out.seek(0)
        err.seek(0)
        lines = out.read().strip().splitlines()
        if process.returncode != 0 or not lines:
            raise SystemExit(f"{script} failed with code {process.returncode}:\n{err.read()[-4000:]}")
    outcome: dict[str, Any] = json.loads(lines[-1])
    return {**outcome, "peak_rss_mb": memory.peak_rss / 2**20, "peak_pss_mb": memory.peak_pss / 2**20}


def pooled(found: list[dict[str, Any]], workload: Work) -> dict[str, Any]:
    """One contestant's passes pooled: medians of rounds and start-ups, the highest peaks."""
    rounds = [s for outcome in found for s in outcome["round_seconds"]]
    seconds = statistics.median(rounds)
    return {
        "seconds_per_round": seconds,
        "round_seconds": rounds,
        "samples_per_second": found[0]["samples_per_round"] / seconds,
        "clients_per_second": workload.clients / seconds,
        "peak_rss_mb": max(outcome["peak_rss_mb"] for outcome in found),
        "peak_pss_mb": max(outcome["peak_pss_mb"] for outcome in found),
        "startup_seconds": statistics.median(outcome["startup_seconds"] for outcome in found),
        "loss": found[0]["loss"],
        "parameters": found[0]["parameters"],
    }


def floor(workload: Work, threads: int, ours: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The floor that ``floor.py`` measures, and Rondo's share of it."""
    command = [sys.executable, str(Path(__file__).with_name("floor.py")), "--work", workload.name]
    process = subprocess.run([*command, "--threads", str(threads)], stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(process.stdout.strip().splitlines()[-1])
    for precision, outcome in ours.items():
        result[precision]["share"] = outcome["samples_per_second"] / result[precision]["samples_per_second"]
    return result


def peers(text: str, contest: Contest, own: Mapping[str, str]) -> dict[str, str]:
    """The names in a comma-separated list, and the Python of each: one of its own, or this one. Raises SystemExit for a
    peer that is unknown or not installed."""
    pythons = {name: own.get(name, sys.executable) for name in text.split(",") if name}
    for name, python in pythons.items():
        if name not in contest.peers:
            raise SystemExit(f"--against: no contestant {name!r} on this work; there are: {', '.join(contest.peers)}")
        package = contest.peers[name].package
        if package is not None and python == sys.executable and importlib.util.find_spec(package) is None:
            raise SystemExit(f"{name} needs {package}: see benchmarks/requirements.txt")
    return pythons


def machine() -> dict[str, Any]:
    """The machine of a benchmark."""
    names = [
        line.partition(":")[2].strip()
        for line in (
            Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else ()
        )
        if line.startswith("model name")
    ]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
    }


_PACKAGES = ("rondo-fl", "torch", "transformers", "peft", "flwr", "ray", "pfl", "blazefl", "fluke-fl")
_ASK = """
import importlib.metadata as m, json, sys
names = {d.metadata["Name"].lower(): d.version for d in m.distributions() if d.metadata["Name"]}
print(json.dumps({n: names[n] for n in sys.argv[1:] if n in names}))
"""


def versions(*pythons: str) -> dict[str, str]:
    """Versions of Python and of every package that takes part and is installed, here or for one of ``pythons``."""
    installed = {"python": platform.python_version()}
    for python in dict.fromkeys((sys.executable, *pythons)):
        asked = subprocess.run([python, "-c", _ASK, *_PACKAGES], stdout=subprocess.PIPE, text=True, check=True)
        installed = {**json.loads(asked.stdout), **installed}
    return installed


def table(result: dict[str, Any]) -> str:
    """The result as text."""
    rows = {f"rondo {p}": row for p, row in result["rondo"].items()} | result["peers"]
    heads = ["s a round", "samples/s", "clients/s", "RSS MB", "PSS MB", "start s", "loss"]
    heads += [f"x {precision}" for precision in result["rondo"]]
    lines = [f"{result['work']:14}" + "".join(f"{head:>11}" for head in heads)]
    for name, row in rows.items():
        cells = [row["seconds_per_round"], row["samples_per_second"], row["clients_per_second"]]
        cells += [row["peak_rss_mb"], row["peak_pss_mb"], row["startup_seconds"], row["loss"][-1]]
        cells += result["ratio"].get(name, {}).values()
        lines.append(f"{name:14}" + "".join(f"{cell:11.{0 if cell >= 1000 else 3}f}" for cell in cells))
    lowest = result["floor"]
    lines.append(f"floor: {lowest['operations_per_sample'] / 1e9:.3g} GFLOP a sample")
    for precision in result["rondo"]:
        row = lowest[precision]
        lines.append(
            f"  {precision}: {row['gflops']:.3g} GFLOP/s, {row['samples_per_second']:,.1f} samples/s; rondo reaches "
            f"{row['share']:.1%}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=WORKS, default="W")
    parser.add_argument("--against", default="loop,flower", help=f"of {', '.join(PEERS)}; separated by commas")
    parser.add_argument(
        "--python", action="append", default=[], metavar="PEER=PATH", help="a Python of its own for a peer"
    )
    parser.add_argument("--rounds", type=int, default=5, help="of each pass")
    parser.add_argument("--passes", type=int, default=1, help="how often the contestants take turns")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--alpaca", type=Path, help="folder with Alpaca's train.parquet, for W9")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    workload = WORKS[args.work]
    contest = contest_of(workload)
    pythons = peers(args.against, contest, dict(pair.split("=", 1) for pair in args.python))
    result: dict[str, Any] = {"work": args.work, "rounds": args.rounds, "passes": args.passes}
    result["threads"] = args.threads
    turns: dict[str, tuple[str, ...]] = {f"rondo {p}": ("rondo_run", "--precision", p) for p in contest.precisions}
    turns |= {name: contest.peers[name].script for name in pythons}
    outcomes: dict[str, list[dict[str, Any]]] = {name: [] for name in turns}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / contest.data
        contest.write(replace(workload, alpaca=args.alpaca) if isinstance(workload, Workload) else workload, data)
        for _ in range(args.passes):
            for name, (script, *extra) in turns.items():
                python = pythons.get(name, sys.executable)
                outcomes[name].append(run_contestant(python, script, workload, args.rounds, args.threads, data, *extra))
    contestants = {name: pooled(passes, workload) for name, passes in outcomes.items()}
    ours = result["rondo"] = {p: contestants[f"rondo {p}"] for p in contest.precisions}
    result["peers"] = {name: contestants[name] for name in pythons}
    if len(counts := {one["parameters"] for one in (*ours.values(), *result["peers"].values())}) > 1:
        raise SystemExit(f"the contestants train different numbers of parameters: {sorted(counts)}")
    result["ratio"] = {
        name: {p: one["seconds_per_round"] / ours[p]["seconds_per_round"] for p in ours}
        for name, one in result["peers"].items()
    }
    result["floor"] = floor(workload, args.threads, ours)
    result |= {"machine": machine(), "versions": versions(*pythons.values())}
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(table(result))


if __name__ == "__main__":
    main()
