"""A run as a Flower app: what is written, and a whole run over Flower's own programs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from parties import write_configuration, write_sites
from simulations import simulated

from outcomes import adapter
from rondo.config import ConfigError
from rondo.federation import app
from small_runs import save_tiny_bert


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("flower")
    save_tiny_bert(folder / "bert")
    write_sites(folder)
    write_configuration(folder, algorithm={"name": "fedsa-lora"}, model={"head": "local"})
    return folder / "config.toml"


def test_app_holds_the_configuration(config: Path, tmp_path: Path) -> None:
    app.write(tmp_path / "app", str(config), 2)
    assert (tmp_path / "app" / "config.toml").read_bytes() == config.read_bytes()
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["config"]["nodes"] == 2
    assert project["project"]["dependencies"] == ["flwr>=1.41,<1.43"]
    with pytest.raises(ConfigError, match="already exists"):
        app.write(tmp_path / "app", str(config), 2)


def test_app_that_masks_uploads_is_refused(config: Path, tmp_path: Path) -> None:
    section = '[privacy]\nadversary = "server"\nsecure_aggregation = true\nclip = 1.0\n'
    (tmp_path / "config.toml").write_text(config.read_text() + section)
    with pytest.raises(ConfigError, match="a SuperNode runs the code that its SuperLink sends"):
        app.write(tmp_path / "app", str(tmp_path / "config.toml"), 2)
    assert not (tmp_path / "app").exists()


def test_app_of_a_simulation_is_refused(config: Path, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(config.read_text() + "[faults]\ncrash = 0.5\n")
    with pytest.raises(ConfigError, match="faults are rehearsed in a simulation"):
        app.write(tmp_path / "app", str(tmp_path / "config.toml"), 2)
    assert not (tmp_path / "app").exists()


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({}, "rondo-data: missing"),
        ({"rondo-data": "x.csv"}, "rondo-state: missing"),
        ({"rondo-data": "x.csv", "rondo-state": "s", "rondo-sate": "s"}, "rondo-sate: unknown"),
        ({"rondo-data": "x.csv", "rondo-state": "s"}, "rondo-contract: missing"),
        ({"rondo-data": "x.csv", "rondo-state": "s", "rondo-contract": "none.toml"}, "none.toml: no such file"),
    ],
)
def test_node_without_rows_is_told(node: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        app._desk(node)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        return port


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_run_over_flowers_own_programs_equals_the_simulation(config: Path, tmp_path: Path) -> None:
    folder, programs, ports = config.parent, Path(sys.executable).parent, [free_port() for _ in range(3)]
    app.write(tmp_path / "app", str(config), 2)
    project = tmp_path / "app" / "pyproject.toml"
    project.write_text(project.read_text().replace('run-dir = ""', f'run-dir = "{tmp_path / "run"}"'))
    (tmp_path / "home").mkdir()
    where = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{ports[0]}"\ninsecure = true\n'
    (tmp_path / "home" / "config.toml").write_text(where)
    environment = {
        **os.environ,
        "FLWR_HOME": str(tmp_path / "home"),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }

    def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (tmp_path / name).open("wb") as out:
            return subprocess.Popen(
                [str(programs / name.partition("-of-")[0]), *arguments], stdout=out, stderr=out, env=environment
            )

    contract = tmp_path / "site.toml"
    training = "[training]\nleast_clients = 1\nrepeats = true\n"
    contract.write_text(f'[rows]\ninputs = ["text"]\nlabels = ["label"]\n{training}')
    link = ("--insecure", "--disable-runtime-dependency-installation", "--port", str(ports[0]))
    running = [start("flower-superlink", *link)]
    try:
        for site, port in (("north", ports[1]), ("south", ports[2])):
            own = (
                f'rondo-data="{folder / "data" / site}" rondo-state="{tmp_path / site}" '
                f'rondo-contract="{contract}" rondo-model="{folder / "bert"}"'
            )
            way = ("--insecure", "--superlink", f"127.0.0.1:{ports[0]}", "--port", str(port))
            running.append(start(f"flower-supernode-of-{site}", *way, "--node-config", own))
        time.sleep(5)
        done = subprocess.run(
            [str(programs / "flwr"), "run", str(tmp_path / "app"), "here", "--stream"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert (tmp_path / "run" / "summary.json").is_file(), done.stdout + done.stderr
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(timeout=30)
    content = tomllib.loads(config.read_text())
    assert adapter(tmp_path / "run") == adapter(simulated(folder, content, tmp_path / "simulation").run_dir)
