"""Every command of docs/how-to/federate.md runs, in its order, with a small model and few rows on this machine."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from small_runs import reviews, save_tiny_bert, write_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "federate.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of the page in ``language``."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S)
    return [text for of, text in fences if of == language]


class Host:
    """A machine with the page's folder: a shell, and the processes that it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []
        program = folder / "bin" / "rondo"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c 'from rondo.cli import main; main()' \"$@\"\n")
        program.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}

    def run(self, block: str) -> str:
        """Run a block to its end; return what it printed."""
        done = subprocess.run(
            ["bash", "-ec", block], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, block + done.stdout + done.stderr + self.printed()
        return done.stdout

    def start(self, block: str) -> subprocess.Popen[str]:
        """Start a block; return its process. What it prints is in the file of its number."""
        with (self.folder / f"{len(self.started)}.log").open("w") as log:
            process = subprocess.Popen(
                ["bash", "-ec", block],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.started.append(process)
        return process

    def printed(self) -> str:
        """What all started processes have printed."""
        return "".join((self.folder / f"{i}.log").read_text() for i in range(len(self.started)))

    def wait(self, text: str, times: int = 1) -> None:
        """Wait until the started processes have printed ``text`` so often."""
        end = time.monotonic() + 120
        while self.printed().count(text) < times:
            assert time.monotonic() < end, f"no {text!r}: {self.printed()}"
            time.sleep(0.05)

    def kill(self, process: subprocess.Popen[str]) -> None:
        """Kill a started process, without a warning."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    for process in host.started:
        if process.poll() is None:
            host.kill(process)


def test_page_from_zero_to_renewed_keys(host: Host) -> None:
    """The page's own text, but for the model, the number of rounds, the port and the server's patience."""
    config, _ = blocks("toml")
    write_rows(host.folder / "test.csv", reviews(12, seed=3))
    for seed, site in enumerate(("anna", "mary")):
        write_rows(host.folder / site / "ward.csv", reviews(20, seed=seed))
    for place in ("mary/models", "models"):
        save_tiny_bert(host.folder / place / "roberta-base")
    model = host.folder / "models" / "roberta-base"
    changed = config.replace("rounds = 20", "rounds = 60").replace('"roberta-base"', f'"{model}"')
    (host.folder / "config.toml").write_text(changed)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])

    install, *commands = (block.replace("9092", port) for block in blocks(""))
    assert install == 'pip install "rondo-fl[federation]"\n'
    server = None
    for block in commands:
        if block.startswith("rondo federate server"):
            server = host.start(block.replace("--run-dir", "--patience 1 --run-dir"))
            host.wait("listening on ")
        elif block.startswith("rondo resume"):
            assert server is not None
            host.kill(server)
            rounds = host.printed().count("\nround ")
            server = host.start(block)
            host.wait("\nround ", rounds + 2)
        elif "rondo federate client" in block:
            # Without the hub that the page's site takes the model from, it names a copy.
            host.start(block if "--model" in block else f"{block.rstrip()} --model {model}\n")
        elif block.startswith("rondo federate status"):
            host.wait("\nround ", 2)
            assert "st-mary: takes part since" in host.run(block)
        elif block.startswith("rondo export"):
            assert server is not None
            assert server.wait(timeout=200) == 0, host.printed()
            assert host.run(block)
        else:
            host.run(block)

    anna, mary = host.started[1:3]
    assert anna.wait(timeout=60) == 0, host.printed()
    assert mary.wait(timeout=60) == 2, host.printed()
    assert "the server turns it away: the key of st-mary is revoked" in host.printed()
    assert (host.folder / "ward-adapter" / "adapter_model.safetensors").is_file()
    assert (host.folder / "anna" / "runs" / "site-st-anna" / "letters.jsonl").is_file()
