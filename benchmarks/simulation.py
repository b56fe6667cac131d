"""Rondo beside other ways to simulate federated fine-tuning on one machine: the same model, rows, steps and threads.

    pip install -r benchmarks/requirements.txt          # see there for what comes first
    python benchmarks/simulation.py --work W --against loop,flower --rounds 5 --threads 2 --json w.json

Every contestant runs by itself in a fresh process. Seconds a round are the median over the rounds; memory is the peak
of the sum over the process and all that it started, as resident set size (shared pages counted in each process) and as
proportional set size (shared pages counted once). Starting up lasts from the first import to the first round.
Where the machine's speed drifts over minutes (neighbours on a shared host), ``--passes N`` lets the contestants take
turns N times, each time in fresh processes, and pools their rounds.
The floor is what ``floor.py`` says: the operations a sample needs over the rate of this machine's matrix products.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from workloads import WORKLOADS, Workload, write_rows

PEERS = {
    "loop": (("loop",), None),
    "compiled": (("loop", "--compile"), None),
    "flower": (("flower",), "flwr"),
    "pfl": (("pfl_run",), "pfl"),
}
"""Every peer: its script with its options, and the package that it needs beside Rondo's own."""

_MARK = "RONDO_BENCHMARK"
_RSS_SECONDS, _LOOK_SECONDS, _PSS_SECONDS = 0.1, 0.5, 10.0
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SETTLED_SECONDS = 2.0
"""The environment of a process cannot be read in its very first moments."""


@dataclass
class Memory:
    """Peaks of the memory of a process and of all that it started: those whose parent is one of them, or that carry
    its mark in their environment (Ray's may outlive their parent).

    Watching must not slow down what is watched: resident sizes are read from ``statm`` ten times a second, new
    processes are looked for twice a second, and proportional sizes, for which the kernel walks all pages and keeps the
    process from mapping more, are read every ten seconds.
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
        """Look for new processes, and add up."""
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
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    except OSError:  # it is gone
        return 0


def _proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def contest(script: str, workload: Workload, rounds: int, threads: int, data: Path, *extra: str) -> dict[str, Any]:
    """Run one contestant and watch its memory. Raises SystemExit with the end of its output where it fails."""
    command = [sys.executable, str(Path(__file__).parent / "contestants" / f"{script}.py")]
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
    found: dict[str, Any] = json.loads(lines[-1])
    return {**found, "peak_rss_mb": memory.peak_rss / 2**20, "peak_pss_mb": memory.peak_pss / 2**20}


def pooled(found: list[dict[str, Any]], workload: Workload) -> dict[str, Any]:
    """One contestant's passes as one: medians of rounds and start-ups, the highest peaks."""
    rounds = [s for one in found for s in one["round_seconds"]]
    seconds = statistics.median(rounds)
    return {
        "seconds_per_round": seconds,
        "round_seconds": rounds,
        "samples_per_second": found[0]["samples_per_round"] / seconds,
        "clients_per_second": workload.clients / seconds,
        "peak_rss_mb": max(one["peak_rss_mb"] for one in found),
        "peak_pss_mb": max(one["peak_pss_mb"] for one in found),
        "startup_seconds": statistics.median(one["startup_seconds"] for one in found),
        "loss": found[0]["loss"],
        "parameters": found[0]["parameters"],
    }


def floor(workload: Workload, threads: int, ours: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What ``floor.py`` says, and what share of it Rondo reaches."""
    command = [sys.executable, str(Path(__file__).with_name("floor.py")), "--work", workload.name]
    done = subprocess.run([*command, "--threads", str(threads)], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    for precision, one in ours.items():
        found[precision]["share"] = one["samples_per_second"] / found[precision]["samples_per_second"]
    return found


def peers(text: str) -> list[str]:
    """The names in a comma-separated list. Raises SystemExit for one that is unknown or not installed."""
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in PEERS:
            raise SystemExit(f"--against: no contestant {name!r}; there are: {', '.join(PEERS)}")
        package = PEERS[name][1]
        if package is not None and importlib.util.find_spec(package) is None:
            raise SystemExit(f"{name} needs {package}: pip install -r benchmarks/requirements.txt")
    return names


def machine() -> dict[str, Any]:
    """Where it ran."""
    names = [
        line.partition(":")[2].strip()
        for line in (Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ())
        if line.startswith("model name")
    ]
    return {
        "processor": names[0] if names else platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Python and every package that takes part."""
    found = {"python": platform.python_version()}
    for name in ("rondo-fl", "torch", "transformers", "peft", "flwr", "ray", "pfl"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def table(result: dict[str, Any]) -> str:
    """The result for reading."""
    rows = {f"rondo {p}": one for p, one in result["rondo"].items()} | result["peers"]
    heads = ("s a round", "samples/s", "clients/s", "RSS MB", "PSS MB", "start s", "loss", "x fast", "x exact")
    lines = [f"{result['work']:14}" + "".join(f"{head:>11}" for head in heads)]
    for name, one in rows.items():
        cells = [one["seconds_per_round"], one["samples_per_second"], one["clients_per_second"]]
        cells += [one["peak_rss_mb"], one["peak_pss_mb"], one["startup_seconds"], one["loss"][-1]]
        cells += result["ratio"].get(name, {}).values()
        lines.append(f"{name:14}" + "".join(f"{cell:11.{0 if cell >= 1000 else 3}f}" for cell in cells))
    least = result["floor"]
    lines.append(f"floor: {least['operations_per_sample'] / 1e9:.2f} GFLOP a sample")
    for precision in result["rondo"]:
        one = least[precision]
        lines.append(
            f"  {precision}: {one['gflops']:.0f} GFLOP/s, {one['samples_per_second']:.1f} samples/s; rondo reaches "
            f"{one['share']:.0%}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=WORKLOADS, default="W")
    parser.add_argument("--against", default="loop,flower", help=f"of {', '.join(PEERS)}; separated by commas")
    parser.add_argument("--rounds", type=int, default=5, help="of each pass")
    parser.add_argument("--passes", type=int, default=1, help="how often the contestants take turns")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    names, workload = peers(args.against), WORKLOADS[args.work]
    result: dict[str, Any] = {"work": args.work, "rounds": args.rounds, "passes": args.passes}
    result["threads"] = args.threads
    turns: dict[str, tuple[str, ...]] = {f"rondo {p}": ("rondo_run", "--precision", p) for p in ("fast", "exact")}
    turns |= {name: PEERS[name][0] for name in names}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in turns}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "train.csv"
        write_rows(workload, data)
        for _ in range(args.passes):
            for name, (script, *extra) in turns.items():
                found[name].append(contest(script, workload, args.rounds, args.threads, data, *extra))
    each = {name: pooled(passes, workload) for name, passes in found.items()}
    ours = result["rondo"] = {p: each[f"rondo {p}"] for p in ("fast", "exact")}
    result["peers"] = {name: each[name] for name in names}
    if len(counts := {one["parameters"] for one in (*ours.values(), *result["peers"].values())}) > 1:
        raise SystemExit(f"the contestants train different numbers of parameters: {sorted(counts)}")
    result["ratio"] = {
        name: {p: one["seconds_per_round"] / ours[p]["seconds_per_round"] for p in ours}
        for name, one in result["peers"].items()
    }
    result["floor"] = floor(workload, args.threads, ours)
    result |= {"machine": machine(), "versions": versions()}
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    print(table(result))


if __name__ == "__main__":
    main()
