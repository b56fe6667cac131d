"""Three hosts on this machine, joined by lines with latency, loss and a rate: the same adapter as the simulation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from emulated_line import Hosts, Line, allowed
from parties import SITES, write_configuration, write_sites
from simulations import simulated

from outcomes import adapter
from rondo.federation.identity import keys
from small_runs import save_tiny_bert

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not allowed(), reason="this process may not make network namespaces"),
]

SLOW = Line(delay=0.05, loss=0.01, rate=1e7)


ECHO = """
import socket, sys
here = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
here.bind((sys.argv[1], 7))
print("ready", flush=True)
while True:
    here.sendto(*here.recvfrom(100))
"""

PROBE = """
import socket, sys, time
there = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
there.settimeout(0.3)
trips = []
for i in range(60):
    began = time.monotonic()
    there.sendto(b"%02d" % i, (sys.argv[1], 7))
    try:
        while there.recv(100) != b"%02d" % i:
            pass
        trips.append(time.monotonic() - began)
    except TimeoutError:
        pass
print(len(trips), min(trips))
"""


def test_packets_wait_and_get_lost() -> None:
    """The emulated line itself: there and back takes twice the delay, and some packets are lost on either way."""
    with Hosts(("one", "other"), Line(delay=0.05, loss=0.2)) as hosts:
        address = hosts.address("other")
        words = [*hosts.command("other"), sys.executable, "-c", ECHO, address]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as echo:
            assert echo.stdout is not None
            echo.stdout.readline()
            words = [*hosts.command("one"), sys.executable, "-c", PROBE, address]
            arrived, shortest = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
            echo.kill()
        sent = hosts.sent["one"]
    assert 0.1 <= float(shortest) < 0.13
    assert 20 <= int(arrived) <= 55  # 38 are expected
    assert sent == 60 * (20 + 8 + 2)  # IP, UDP, and the number


def test_federation_of_three_hosts_equals_the_simulation(tmp_path: Path) -> None:
    save_tiny_bert(tmp_path / "bert")
    write_sites(tmp_path)
    simulated(tmp_path, write_configuration(tmp_path, rounds=3), tmp_path / "simulation")
    command = [sys.executable, "-c", "from rondo.cli import main; main()", "federate"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with Hosts(("server", *SITES), SLOW) as hosts:
        host = hosts.address("server")
        (tmp_path / "keys").rename(tmp_path / "keys-of-localhost")
        keys.make([host], list(SITES), tmp_path / "keys", days=2, clients=SITES)
        options = {"cwd": tmp_path, "env": environment, "stdin": subprocess.DEVNULL}
        words = ("server", "config.toml", "--listen", f"{host}:9092", "--run-dir", "run")
        programs = [subprocess.Popen([*hosts.command("server"), *command, *words], **options)]  # type: ignore[call-overload]
        try:
            for site in SITES:
                words = ("client", "--server", host, "--keys", f"keys/{site}", "--data", f"data/{site}", "--wait", "60")
                more = ("--model", str(tmp_path / "bert"), "--contract", "site.toml", "--yes")
                programs.append(subprocess.Popen([*hosts.command(site), *command, *words, *more], **options))  # type: ignore[call-overload]
            end = time.monotonic() + 300
            while any(program.poll() is None for program in programs):
                assert time.monotonic() < end
                assert [program for program in programs if program.poll()] == []
                time.sleep(0.2)
        finally:
            for program in programs:
                program.kill()
                program.wait()
    assert adapter(tmp_path / "run") == adapter(tmp_path / "simulation")
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record for record in records if record["failed"] != []] == []
