"""Each tracker's own package, written to offline and read back by it: also after kills, every round is there once.

A test is skipped where the package is not installed (extras ``tensorboard``, ``trackio``, ``wandb``, ``mlflow``).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import rondo
from kinds_of_runs import configured, outcome

ROUNDS = 5
Read = Callable[[Path], list[tuple[int, float]]]
"""Reads the rounds that a tracker has of the run in a folder, each with its loss, in their order."""


def tensorboard(folder: Path) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(point.step, point.value) for point in events.Scalars("measures/global_loss")]


def trackio(folder: Path) -> list[tuple[int, float]]:
    from trackio.sqlite_storage import SQLiteStorage

    (name,) = (run for run in SQLiteStorage.get_runs("mine") if run.startswith(f"{folder.name}-"))
    logs = SQLiteStorage.get_logs("mine", name)
    return [(log["step"], log["measures/global_loss"]) for log in logs]


def mlflow(folder: Path) -> list[tuple[int, float]]:
    from mlflow.tracking import MlflowClient

    place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.parent / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=place)
    experiment = client.get_experiment_by_name("mine")
    (run,) = (run for run in client.search_runs([experiment.experiment_id]) if run.info.run_name == folder.name)
    assert run.data.params["rounds"] == str(ROUNDS)
    assert run.info.status in ("FINISHED", "KILLED")
    history = client.get_metric_history(run.info.run_id, "measures/global_loss")
    return [(point.step, point.value) for point in history]


def wandb(folder: Path) -> list[tuple[int, float]]:
    """The package has no reader of its own offline files; the messages in them are parsed by its own classes."""
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    found = []
    for content in _leveldb(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content)
        if record.HasField("history"):
            values = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
            }
            found.append((values["_step"], values["measures/global_loss"]))
    return found


def _leveldb(content: bytes) -> list[bytes]:
    """The records of a log in LevelDB's format: blocks of 32 KiB, in which each part has a header of 7 bytes."""
    records, part, place = [], b"", 7
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        part += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            records.append(part)
            part = b""
    return records


READ: dict[str, Read] = {"tensorboard": tensorboard, "trackio": trackio, "wandb": wandb, "mlflow": mlflow}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(params=sorted(READ))
def tracker(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    pytest.importorskip(request.param)
    for name in ("WANDB_API_KEY", "WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # where a login would lie
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    if request.param == "trackio":
        from trackio import sqlite_storage, utils

        for module in (sqlite_storage, utils):
            monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path / "trackio", raising=False)
    return str(request.param)


def config(tmp_path: Path, *trackers: str) -> dict[str, Any]:
    base, _ = configured("a linear problem", tmp_path, rounds=ROUNDS)
    return {**base, "track": {"to": list(trackers), "project": "mine"}}


def expected(folder: Path) -> list[tuple[int, float]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [(record["round"] + 1, pytest.approx(record["measures"]["global_loss"], rel=1e-6)) for record in lines]


def test_run_is_read_back_by_the_package(tracker: str, tmp_path: Path) -> None:
    run = rondo.run(config(tmp_path, tracker), run_dir=tmp_path / "run", device="cpu")
    assert READ[tracker](run.run_dir) == expected(run.run_dir)
    alone = rondo.run(config(tmp_path), run_dir=tmp_path / "alone", device="cpu")
    assert outcome(run.run_dir) == outcome(alone.run_dir)


_KILLED = """
import os, signal, sys
import rondo
class Dies(rondo.Observer):
    def round_done(self, record):
        if record["round"] + 1 == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
rondo.run(eval(sys.argv[2]), run_dir=sys.argv[3], device="cpu", observer=Dies())
"""


@pytest.mark.parametrize("at", [1, 3])
def test_killed_run_goes_on_as_the_same_tracked_run(tracker: str, tmp_path: Path, at: int) -> None:
    command = [sys.executable, "-c", _KILLED, str(at), repr(config(tmp_path, tracker)), str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    died = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert died.returncode == -signal.SIGKILL, died.stderr
    run = rondo.resume(tmp_path / "run", device="cpu")
    assert READ[tracker](run.run_dir) == expected(run.run_dir)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An MLflow server on this machine."""
    pytest.importorskip("mlflow")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = f"sqlite:///{tmp_path / 'server.db'}"
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    options = ["--backend-store-uri", store, "--artifacts-destination", str(tmp_path / "artifacts"), "--workers", "1"]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen([*command, *options], cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/health", timeout=5):
                break
            time.sleep(0.1)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        yield address
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_mlflow_server_has_every_round_once(server: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", _KILLED, "2", repr(config(tmp_path, "mlflow")), str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=240)
    run = rondo.resume(tmp_path / "run", device="cpu")
    assert mlflow(run.run_dir) == expected(run.run_dir)
    assert not (tmp_path / "mlflow.db").exists()
