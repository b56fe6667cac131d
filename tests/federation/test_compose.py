"""The federation of ``docker/compose.yaml``: in containers where a builder is at hand, and without one as processes."""

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
from typing import Any

import pytest

pytest.importorskip("yaml")

import tomli_w
import yaml

from rondo.federation.identity import keys
from small_runs import reviews, save_tiny_bert, settings, write_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker" / "compose.yaml"
SERVICES: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
SITES = [name for name in SERVICES if name != "server"]
CONTRACT = {
    "rows": {"inputs": ["text"], "labels": ["label"]},
    "training": {"least_rows": 1, "least_steps": 1},
    "outgoing": {"least_rows_scored": 1},
}


def lay_out(folder: Path, model: str, host: str) -> None:
    """The files that the head of the compose file names. ``model``: where a party finds the base model."""
    save_tiny_bert(folder / "model")
    keys.make([host], SITES, folder / "keys", days=10, clients={})
    for number, name in enumerate(SITES):
        write_rows(folder / f"{name}.csv", reviews(16, seed=number))
        (folder / f"{name}.toml").write_text(tomli_w.dumps(CONTRACT))
    for name in SERVICES:
        (folder / name).mkdir()
    config = settings(model, rounds=3, partition={"kind": None, "clients": None}, data={}, simulation={"cohort": 1})
    (folder / "config.toml").write_text(tomli_w.dumps({name: s for name, s in config.items() if s != {}}))


def has_result(folder: Path) -> bool:
    return (folder / "server" / "runs" / "ward" / "adapter" / "adapter_model.safetensors").is_file()


# --- without a builder ----------------------------------------------------------------------------------------------


def _free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


class Services:
    """The services as processes: what is mounted in a container is named by its place on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._port, *monitors = (_free() for _ in ["", *SERVICES])
        self._monitors = dict(zip(SERVICES, monitors, strict=True))
        rondo = folder / "bin" / "rondo"
        rondo.parent.mkdir()
        rondo.write_text(f"#!/bin/sh\nexec {sys.executable} -c 'from rondo.cli import main; main()' \"$@\"\n")
        rondo.chmod(0o700)

    def start(self, name: str) -> None:
        service, folder = SERVICES[name], self._folder
        mounted = {parts[1]: folder / parts[0] for parts in (v.split(":") for v in service["volumes"])}
        text = "\n".join(service["command"])
        for place in sorted(mounted, key=len, reverse=True):
            text = re.sub(rf"(?<![\w.]){place}(?![\w.])", str(mounted[place]), text)
        text = text.replace("--server=server", f"--server=localhost:{self._port}")
        text = text.replace("federate server", f"federate server --listen 127.0.0.1:{self._port}")
        text = text.replace("127.0.0.1:9464", f"127.0.0.1:{self._monitors[name]}")
        words = [*service["entrypoint"], text] if "entrypoint" in service else ["rondo", *text.split("\n")]
        environment = {
            **os.environ,
            "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        with (folder / f"{name}.log").open("ab") as out:
            self.running[name] = subprocess.Popen(
                words, cwd=folder / name, env=environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL
            )

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    lay_out(tmp_path, str(tmp_path / "model"), "localhost")
    made = Services(tmp_path)
    yield made
    for process in made.running.values():
        process.kill()


def test_services_as_processes(services: Services, tmp_path: Path) -> None:
    """A server that is killed goes on with its run when it is started again."""
    for name in [*SITES, "server"]:  # sites wait for it
        services.start(name)
    end = time.monotonic() + 200
    while "round 1 of 3" not in services.log("server"):
        assert time.monotonic() < end, [services.log(name) for name in SERVICES]
        time.sleep(0.05)
    services.running["server"].send_signal(signal.SIGKILL)
    services.running["server"].wait()
    services.start("server")
    for name, process in services.running.items():
        assert process.wait(timeout=200) == 0, services.log(name)
    assert has_result(tmp_path)


# --- with a builder -------------------------------------------------------------------------------------------------


def _works(*words: str) -> bool:
    return shutil.which(words[0]) is not None and subprocess.run(words, capture_output=True).returncode == 0


BUILDER = next((name for name in ("docker", "podman") if _works(name, "info")), None)
COMPOSES = BUILDER is not None and _works(BUILDER, "compose", "version")


@pytest.fixture(scope="module")
def image() -> str:
    """The image, built of this checkout. ``TORCH_INDEX`` in the environment is torch's address for CPUs."""
    if BUILDER is None:
        pytest.skip("the image was not built: neither docker nor podman works here")
    index = os.environ.get("TORCH_INDEX")
    given = ["--build-arg", f"TORCH_INDEX={index}"] if index else []
    words = [BUILDER, "build", "--file", str(ROOT / "docker" / "Dockerfile"), *given, "--tag", "rondo", str(ROOT)]
    built = subprocess.run(words, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout[-5000:] + built.stderr[-5000:]
    return BUILDER


def test_image_runs(image: str) -> None:
    alone = ("--rm", "--network", "none", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL")
    words = [image, "run", *alone, "--user", "4321:4321", "rondo"]
    for arguments, said in ((["--version"], "rondo "), (["federate", "client", "--help"], "--contract")):
        ran = subprocess.run([*words, *arguments], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        assert said in ran.stdout


@pytest.mark.skipif(not COMPOSES, reason="the containers were not run: neither docker compose nor podman compose works")
def test_services_in_containers(image: str, tmp_path: Path) -> None:
    lay_out(tmp_path, "/model", "server")
    words = [image, "compose", "--file", str(COMPOSE), "--project-directory", str(tmp_path)]
    environment = {**os.environ, "OWNER": f"{os.getuid()}:{os.getgid()}"}
    try:
        ran = subprocess.run([*words, "up"], env=environment, capture_output=True, text=True, timeout=1200)
        states = subprocess.run([*words, "ps", "--all"], env=environment, capture_output=True, text=True).stdout
        assert has_result(tmp_path), ran.stdout[-5000:] + ran.stderr[-2000:] + states
        for name in SITES:
            assert (tmp_path / name / "runs" / f"site-{name}").is_dir(), states
    finally:
        subprocess.run([*words, "down"], env=environment, capture_output=True)
