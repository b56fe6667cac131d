"""Twelve homes at three sites: a federation over TLS on this machine, then the simulation of it, and both adapters.

pip install ".[demo,federation]"
python federate_demo.py                     # further settings as arguments: rounds=5 algorithm.name=fedit
"""

import csv
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TextIO

from rondo.data.demo.homes import homes

RONDO = [sys.executable, "-c", "from rondo.cli import main; main()"]
SITES = ("north", "middle", "south")
# Equal threads: sums of floating-point numbers depend on their number. A federation's client trains alone (cohort = 1).
ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
CONFIG = """\
rounds = 3
[algorithm]
name = "rolora"
[adapter]
r = 8
lora_alpha = 16
target_modules = ["query", "value"]
[task]
text = "text"
label = "intent"
max_length = 64
labels = {labels}
[data]
test_source = "test.csv"
validation_fraction = 0.1
[train]
lr = 1e-2
batch_size = 16
[simulation]
cohort = 1
"""
# As rondo federate site init writes it, without comments, except for "repeats": rows are held back by the run's seed,
# as in the simulation.
CONTRACT = """\
[rows]
inputs = ["text"]
labels = ["intent"]
most_labels = 50
[training]
repeats = true
"""


def main(sets: list[str]) -> int:
    """Run both; 0 if their adapters are equal."""
    options = [word for setting in sets for word in ("--set", setting)]
    with tempfile.TemporaryDirectory(prefix="rondo-") as name:
        folder = Path(name)
        write_homes(folder)
        print("== a server and three clients, four homes each, over TLS ==", flush=True)
        if not federate(folder, options):
            print("the federation failed")
            return 1
        print("\n== the simulation of it, in one process ==", flush=True)
        simulation = ["run", "config.toml", "--set", "data.clients_from=data/all", "--run-dir", "simulation"]
        subprocess.run([*RONDO, *simulation, *options], cwd=folder, env=ONE_THREAD, check=True)
        digests = [digest(folder / run) for run in ("federation", "simulation")]
    print(f"\nSHA-256 of the federation's adapter: {digests[0]}")
    print(f"SHA-256 of the simulation's adapter: {digests[1]}")
    equal = digests[0] == digests[1]
    print("the adapters are equal" if equal else "the adapters differ")
    return 0 if equal else 1


def write_homes(folder: Path) -> None:
    """Write the configuration, the test set, and the rows of every home: for its site, and for the simulation."""
    rows = homes()
    names = sorted({row["home"] for row in rows.train})
    for place, home in enumerate(names):
        own = [{"text": row["text"], "intent": row["intent"]} for row in rows.train if row["home"] == home]
        for part in (SITES[place * len(SITES) // len(names)], "all"):
            write(folder / "data" / part / f"{home}.csv", own)
    write(folder / "test.csv", rows.test)
    # Two sites lack rows of some intents, so the configuration names all classes.
    labels = sorted({row["intent"] for row in rows.train})
    (folder / "config.toml").write_text(CONFIG.format(labels=json.dumps(labels)), encoding="utf-8")


def write(path: Path, rows: Iterable[Mapping[str, str]]) -> None:
    """Write rows as a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["text", "intent"])
        writer.writeheader()
        writer.writerows(rows)


def federate(folder: Path, options: list[str]) -> bool:
    """Run the federation; whether every process of it ended well."""
    make = ["federate", "keys", "make", "--server", "localhost"]
    for site in SITES:
        ids = ",".join(sorted(path.stem for path in (folder / "data" / site).iterdir()))
        make += ["--site", f"{site}={ids}"]
    subprocess.run([*RONDO, *make], cwd=folder, env=ONE_THREAD, check=True)
    for site in SITES:
        (folder / f"{site}.toml").write_text(CONTRACT, encoding="utf-8")
    programs: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [*RONDO, "federate", *arguments]
        program = subprocess.Popen(command, cwd=folder, env=ONE_THREAD, text=True, stderr=subprocess.PIPE)
        programs.append(program)
        return program

    try:
        # Port 0 is any free one. The server says which.
        server = start(
            "server", "config.toml", "--listen", "127.0.0.1:0", "--wait", "120", "--run-dir", "federation", *options
        )
        address = f"localhost:{port(server)}"
        repeat(server, "server")
        for site in SITES:
            own = ("--keys", f"keys/{site}", "--data", f"data/{site}", "--contract", f"{site}.toml", "--yes")
            repeat(start("client", "--server", address, *own), site)
        while None in (codes := [program.poll() for program in programs]) and not any(codes):
            time.sleep(0.2)
        return codes == [0] * len(programs)
    finally:
        for program in programs:
            program.terminate()
            program.wait()


def port(server: subprocess.Popen[str]) -> int:
    """The port that the server says it listens on."""
    for line in said(server):
        print(f"server: {line}", end="", flush=True)
        _, _, address = line.partition("listening on ")
        if address:
            return int(address.split(":")[1].split()[0])
    raise SystemExit("the server ended")


def repeat(program: subprocess.Popen[str], name: str) -> None:
    """Print, from now on, every line of a program's stderr behind its name."""

    def work() -> None:
        for line in said(program):
            print(f"{name}: {line}", end="", flush=True)

    threading.Thread(target=work, daemon=True).start()


def said(program: subprocess.Popen[str]) -> TextIO:
    """The stderr of a program."""
    assert program.stderr is not None
    return program.stderr


def digest(run_dir: Path) -> str:
    """SHA-256 of a run's adapter."""
    return hashlib.sha256((run_dir / "adapter" / "adapter_model.safetensors").read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
