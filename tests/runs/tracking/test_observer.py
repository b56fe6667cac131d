"""Runs with trackers: no bit depends on them, and after any stop every round is there once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pretend_wandb
import pytest

import rondo
from kinds_of_runs import configured, outcome
from rondo.errors import ConfigError, RunInterrupted
from small_runs import Watch

ROUNDS = 4


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package that works."""
    folder = pretend_wandb.write(tmp_path / "package")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), str(Path(rondo.__file__).parents[1])]))
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    yield folder
    sys.modules.pop("wandb", None)


def config(tmp_path: Path, *trackers: str) -> dict[str, Any]:
    base, _ = configured("a linear problem", tmp_path, rounds=ROUNDS)
    return {**base, "track": {"to": list(trackers), "project": "mine"}}


def run(tmp_path: Path, name: str, *trackers: str, **options: Any) -> rondo.RunResult:
    return rondo.run(config(tmp_path, *trackers), run_dir=tmp_path / name, device="cpu", **options)


def test_tracker_has_every_round_once(package: Path, tmp_path: Path) -> None:
    result = run(tmp_path, "run", "wandb")
    assert pretend_wandb.rounds(result.run_dir) == [[1, 2, 3, 4]]
    (folder,) = (result.run_dir / "wandb").iterdir()
    mode, project, name, settings = json.loads((folder / "about.json").read_text())
    assert (mode, project, name, settings["rounds"]) == ("offline", "mine", "run", ROUNDS)
    assert (folder / "ended").read_text() == "0"
    last = json.loads((folder / "rows.jsonl").read_text().splitlines()[-1])
    assert last["measures/global_loss"] == result.history[-1]["measures"]["global_loss"]


def test_without_trackers_nothing_is_started_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.font_manager  # lists the fonts of this machine once, by a process

    assert matplotlib.font_manager.fontManager.ttflist
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    assert {p.name for p in run(tmp_path, "run").run_dir.iterdir()}.isdisjoint({"tracking.json", "wandb"})


def test_missing_package_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"track\.to: 'wandb' needs the package wandb, which is not installed: pip"):
        run(tmp_path, "run", "wandb")
    assert not (tmp_path / "run").exists()


SLOW = [pytest.param(how, marks=pytest.mark.slow) for how in ("hangs", "hangs at its end")]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("how", ["throws", "throws once", "fills the disk", "is broken", *SLOW])
def test_no_fault_of_a_tracker_changes_a_bit(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    pretend_wandb.write(package, how)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        followed = run(tmp_path, "followed", "wandb")
    said = [str(w.message) for w in caught if "wandb may lack rounds" in str(w.message)]
    assert outcome(followed.run_dir) == outcome(run(tmp_path, "alone").run_dir)
    assert len(said) == 1
    if how == "throws once":
        assert pretend_wandb.rounds(followed.run_dir) == [[1, 2, 3, 4]]
    if how == "throws":
        assert "RuntimeError: no room on the disk" in said[0]
    if how.startswith("hangs"):
        assert "does not answer" in said[0]


def test_resumed_run_goes_on_with_its_tracked_run(package: Path, tmp_path: Path) -> None:
    stop = threading.Event()
    with pytest.raises(RunInterrupted):
        run(tmp_path, "run", "wandb", observer=Watch(done=lambda done: done == 2 and stop.set()), stop=stop)
    done = len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert 2 <= done < ROUNDS
    assert pretend_wandb.rounds(tmp_path / "run") == [list(range(1, done + 1))]
    first = json.loads((tmp_path / "run" / "tracking.json").read_text())
    rondo.resume(tmp_path / "run", device="cpu")
    assert pretend_wandb.rounds(tmp_path / "run") == [[1, 2, 3, 4]]
    assert json.loads((tmp_path / "run" / "tracking.json").read_text()) == first


@pytest.mark.slow
def test_tracker_begins_after_the_last_round_of_a_secret_turnout(package: Path, tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting")
    private = {"adversary": "reader", "unit": "client", "clip": 1.0, "noise": 1.0, "delta": 1e-3}
    clients = {"sampling": "full", "weighting": "uniform"}
    secret = {**config(tmp_path, "wandb"), "privacy": private, "clients": clients, "evaluation": {}}
    slow = Watch(done=lambda done: time.sleep(0.5))  # longer than a tracker takes to start
    result = rondo.run(secret, run_dir=tmp_path / "run", device="cpu", observer=slow)
    assert pretend_wandb.rounds(result.run_dir) == [[1, 2, 3, 4]]
    (begun,) = (int(folder.name.split("-")[2]) for folder in (result.run_dir / "wandb").iterdir())
    assert begun >= (result.run_dir / "metrics.jsonl").stat().st_mtime_ns


@pytest.mark.slow
def test_overwritten_run_is_another_to_its_tracker(package: Path, tmp_path: Path) -> None:
    ids = []
    for _ in range(2):
        run(tmp_path, "run", "wandb", overwrite=True)
        ids.append(json.loads((tmp_path / "run" / "tracking.json").read_text())["id"])
    assert ids[0] != ids[1]
    assert pretend_wandb.rounds(tmp_path / "run") == [[1, 2, 3, 4]]


@pytest.mark.slow
def test_each_run_of_a_comparison_is_tracked(package: Path, tmp_path: Path) -> None:
    made = rondo.compare(["rolora-linear", "ffa-linear"], config(tmp_path, "wandb"), out=tmp_path / "out", device="cpu")
    for compared in made.runs:
        assert pretend_wandb.rounds(tmp_path / "out" / compared["run_dir"]) == [[1, 2, 3, 4]]


_KILLED = """
import os, signal, sys
import rondo
from rondo.runs.loop import Runner
at, config, folder = int(sys.argv[1]), eval(sys.argv[2]), sys.argv[3]
calls = 0
def may_die():
    global calls
    calls += 1
    if calls == at:
        os.kill(os.getpid(), signal.SIGKILL)
for name in ("append",):
    from rondo.records.durable import Journal
    real = Journal.append
    def append(self, content):
        real(self, content)
        may_die()
    Journal.append = append
class Dies(rondo.Observer):
    def round_done(self, record):
        may_die()
real_commit = Runner._commit
def commit(self, rounds):
    real_commit(self, rounds)
    may_die()
Runner._commit = commit
rondo.run(config, run_dir=folder, device="cpu", observer=Dies())
"""


@pytest.mark.slow
def test_after_a_kill_anywhere_every_round_is_there_once(package: Path, tmp_path: Path) -> None:
    """Killed after the record of a round is written, after it is committed, and after the observers know of it."""
    expected = outcome(run(tmp_path, "whole", "wandb").run_dir)
    for at in range(1, 3 * ROUNDS):
        folder = tmp_path / f"killed-{at}"
        command = [sys.executable, "-c", _KILLED, str(at), repr(config(tmp_path, "wandb")), str(folder)]
        died = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert died.returncode == -signal.SIGKILL, died.stderr
        rondo.resume(folder, device="cpu")
        assert outcome(folder) == expected
        assert pretend_wandb.rounds(folder) == [[1, 2, 3, 4]], at
