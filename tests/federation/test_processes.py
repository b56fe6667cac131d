"""A federation of real processes that are killed, stopped and cut off: the same adapter as if nothing had happened."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from parties import SITES, write_configuration, write_sites
from simulations import simulated

from outcomes import adapter
from small_runs import save_tiny_bert

pytestmark = pytest.mark.slow

ROUNDS = 4


@dataclass
class Proxy:
    """A line between sites and server, which can be cut."""

    target: int
    up: bool = True
    port: int = 0
    _pairs: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection and accept none."""
        self.up = False
        for side in self._pairs:
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self.up = True

    def _accept(self) -> None:
        while True:
            side, _ = self._listening.accept()
            if not self.up:
                side.close()
                continue
            try:
                other = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                side.close()
                continue
            self._pairs += [side, other]
            for a, b in ((side, other), (other, side)):
                threading.Thread(target=self._pump, args=(a, b), daemon=True).start()

    def _pump(self, a: socket.socket, b: socket.socket) -> None:
        with suppress(OSError):
            while data := a.recv(2**16):
                b.sendall(data)
        for side in (a, b):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)


@dataclass
class Processes:
    """Server and sites, each a process. ``folder`` has keys, rows and the configuration."""

    folder: Path
    work: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    port: int = 0

    def rondo(self, name: str, *arguments: str, **options: Any) -> None:
        """Start a command of Rondo, whose output is in the file ``name``. ``options``: of its process."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with (self.work / name).open("ab") as out:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-c", "from rondo.cli import main; main()", *arguments],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                cwd=self.work,
                env=environment,
                **options,
            )

    def serve(self, **options: Any) -> None:
        keys, listen = str(self.folder / "keys" / "server"), f"127.0.0.1:{self.port}"
        more = ("--keys", keys, "--listen", listen, "--run-dir", "run", "--patience", "120")
        self.rondo("server", "federate", "server", str(self.folder / "config.toml"), *more, **options)
        self.until("server", "listening on")
        self.port = int(self.log("server").split("listening on 127.0.0.1:")[1].split()[0])

    def site(self, name: str, port: int | None = None, *more: str) -> None:
        keys, data = str(self.folder / "keys" / name), str(self.folder / "data" / name)
        server = f"localhost:{port or self.port}"
        model = str(self.folder / "bert")
        contract = str(self.folder / "site.toml")
        options = ("--keys", keys, "--data", data, "--model", model, "--contract", contract, "--yes", *more)
        self.rondo(name, "federate", "client", "--server", server, *options)

    def log(self, name: str) -> str:
        return (self.work / name).read_text()

    def until(self, name: str, text: str, count: int = 1) -> None:
        end = time.monotonic() + 120
        while self.log(name).count(text) < count:
            assert time.monotonic() < end, f"{name} does not say {text!r}:\n{self.log(name)}"
            assert self.running[name].poll() in (None, 0), self.log(name)
            time.sleep(0.02)

    def kill_and_start_again(self, site: str, after: str) -> None:
        """Kill a site once it has told ``after``, and start it again."""
        self.until(site, after)
        self.kill(site)
        self.site(site)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        self.running[name].send_signal(number)
        self.running.pop(name).wait(timeout=60)

    def begin(self) -> None:
        """Start the server, and then every site."""
        self.serve()
        for name in SITES:
            self.site(name)

    def end(self) -> None:
        """Wait for all, which must end well, with an adapter."""
        for name in ("server", *SITES):
            assert self.running.pop(name).wait(timeout=240) == 0, self.log(name)
        self.adapter = adapter(self.work / "run")

    def end_equal(self) -> None:
        """As :meth:`end`, with the adapter of the simulation in ``folder``."""
        self.end()
        assert self.adapter == adapter(self.folder / "simulation")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("processes")
    save_tiny_bert(path / "bert")
    write_sites(path)
    sections = {"algorithm": {"name": "fedsa-lora"}, "model": {"head": "local"}, "train": {"local_epochs": 12}}
    simulated(path, write_configuration(path, rounds=ROUNDS, **sections), path / "simulation")
    return path


@pytest.fixture
def processes(folder: Path, tmp_path: Path) -> Any:
    started = Processes(folder, tmp_path)
    yield started
    for process in started.running.values():
        process.kill()


def test_sites_are_there_before_their_server(processes: Processes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        processes.port = free.getsockname()[1]
    for name in SITES:
        processes.site(name, None, "--wait", "120")
    for name in SITES:
        processes.until(name, "waiting for localhost")
    processes.serve()
    processes.end_equal()


def test_server_is_stopped_while_it_waits(processes: Processes) -> None:
    processes.serve()
    processes.site("north")
    processes.until("north", "connected to")
    process = processes.running["server"]
    processes.kill("server", signal.SIGINT)
    assert process.returncode == 130
    assert "Traceback" not in processes.log("server")
    assert "run the same command again to go on" in processes.log("server")


@pytest.mark.parametrize("after", ["round 1: bob", "round 2: bob"])
def test_site_is_killed_and_comes_back(processes: Processes, after: str) -> None:
    """Between its two clients, of which one has answered."""
    processes.begin()
    processes.kill_and_start_again("south", after)
    processes.end_equal()


@pytest.mark.parametrize("after", ["south takes part", "round 1 of", "round 3 of"])
def test_server_is_killed_and_resumed(processes: Processes, after: str) -> None:
    processes.begin()
    processes.until("server", after)
    time.sleep(0.2)  # somewhere within the next round
    processes.kill("server")
    if after == "south takes part" and not (processes.work / "run" / "manifest.json").exists():
        processes.serve()
    else:
        processes.rondo("server", "resume", "run")
    processes.end_equal()


def test_line_is_cut(processes: Processes) -> None:
    """For ten seconds, in the middle of a round."""
    processes.serve()
    line = Proxy(processes.port)
    for name in SITES:
        processes.site(name, line.port)
    processes.until("server", "round 1 of")
    line.cut()
    processes.until("north", "is lost")
    time.sleep(10)
    line.mend()
    processes.end_equal()


def test_site_that_hangs_is_waited_for(processes: Processes) -> None:
    processes.begin()
    processes.until("server", "round 1 of")
    processes.running["south"].send_signal(signal.SIGSTOP)
    time.sleep(5)
    processes.running["south"].send_signal(signal.SIGCONT)
    processes.end_equal()


def test_interrupted_server_says_how_to_go_on(processes: Processes) -> None:
    processes.begin()
    processes.until("server", "round 1 of")
    processes.kill("server", signal.SIGINT)
    assert "go on with: rondo resume run" in processes.log("server")
    processes.rondo("status", "federate", "status", "run")
    processes.running.pop("status").wait(timeout=60)
    assert "fedsa-lora: not running" in processes.log("status")
    processes.rondo("server", "resume", "run")
    processes.end_equal()


def test_disk_of_a_site_is_full(processes: Processes) -> None:
    """For a while: files end at some bytes, as on a full disk. The site says so, and goes on once there is room."""
    processes.begin()
    north = processes.running["north"].pid
    resource.prlimit(north, resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    processes.until("north", "File too large")
    time.sleep(3)
    resource.prlimit(north, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    processes.end_equal()
    assert "Traceback" not in processes.log("north")
