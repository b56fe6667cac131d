"""Masked sums between processes, over Flower and TLS: kill -9 of a site and of the server changes no bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

import tomli_w
from parties import SITES, configuration, write_sites
from test_processes import Processes, weights

import rondo
from small_runs import save_tiny_bert

pytestmark = pytest.mark.slow

ROUNDS = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("masked_processes")
    save_tiny_bert(path / "bert")
    write_sites(path)
    config = configuration(
        path,
        rounds=ROUNDS,
        algorithm={"name": "rolora"},
        privacy={"adversary": "server", "secure_aggregation": True, "clip": 10.0},
        task={"labels": ["neg", "pos"]},
        train={"local_epochs": 12},
    )
    config = {name: section for name, section in config.items() if section != {}}
    (path / "config.toml").write_text(tomli_w.dumps({n: _set(s) for n, s in config.items()}))
    data = {**config["data"], "clients_from": str(path / "data" / "all")}
    rondo.run({**config, "data": data}, run_dir=path / "simulation", device="cpu")
    return path


def _set(section: Any) -> Any:
    """A section without keys that are not set, which TOML cannot write."""
    return {k: v for k, v in section.items() if v is not None} if isinstance(section, dict) else section


@pytest.fixture
def processes(folder: Path, tmp_path: Path) -> Any:
    started = Processes(folder, tmp_path)
    yield started
    for process in started.running.values():
        process.kill()


@pytest.mark.parametrize("after", ["round 2: cid trained", "round 2: a masked vector", "round 2: the sum"])
def test_site_is_killed_and_comes_back(processes: Processes, folder: Path, after: str) -> None:
    processes.serve()
    for name in SITES:
        processes.site(name)
    processes.kill_and_start_again("south", after)
    processes.end()
    assert processes.weights() == weights(folder / "simulation")


@pytest.mark.parametrize("after", ["round 2: cid trained", "round 2: a masked vector", "round 2: the sum"])
def test_server_is_killed_and_resumed(processes: Processes, folder: Path, after: str) -> None:
    processes.serve()
    for name in SITES:
        processes.site(name)
    processes.until("south", after)
    processes.kill("server")
    processes.rondo("server", "resume", "run")
    processes.end()
    assert processes.weights() == weights(folder / "simulation")
    assert "Traceback" not in processes.log("server")
