"""Several runs at a time: a process makes one after the other, with the bits of a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import rondo
from rondo.config import load
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, DiskFailed, RunInterrupted
from rondo.records.directory import RunDirectory
from rondo.runs import runner
from rondo.study import parallel
from rondo.study.parallel import in_processes
from rondo.study.runs import Runs, Trial
from small_entries import LINEAR, TRAIN
from small_runs import reviews, save_tiny_bert, settings, write_rows
from watched import failing, planted

ENDLESS = 1_000_000


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The processes that have been started."""
    processes = list[Any]()

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            processes.append(self)

    monkeypatch.setattr(parallel.subprocess, "Popen", Recorded)
    return processes


def linear(folder: Path, name: str, rounds: int = 2) -> Trial:
    config = {**LINEAR, "algorithm": {"name": "rolora-linear"}, "train": TRAIN, "rounds": rounds}
    return Trial(name, 0, load(config), folder / name)


def has_begun(job: Trial) -> None:
    """Wait for the first round of ``job``."""
    while not RunDirectory(job.folder).metrics.exists():
        time.sleep(0.02)


@pytest.mark.slow
def test_one_process_makes_runs_with_the_bits_of_one_each(tmp_path: Path, started: list[Any]) -> None:
    rows = write_rows(tmp_path / "train.csv", reviews(24))
    bert = save_tiny_bert(tmp_path / "bert")

    def config(seed: int, algorithm: str) -> RunConfig:
        tree = settings(bert, data={"source": str(rows), "test_split": ""}, rounds=2, seed=seed)
        return load({**tree, "algorithm": {"name": algorithm}})

    configs = {"one": config(0, "fedit"), "two": config(1, "rolora"), "three": config(0, "fedit")}
    jobs = [Trial(name, made.seed, made, tmp_path / "side" / name) for name, made in configs.items()]
    ended = list(in_processes(jobs, 1, "cpu", "rondo compare"))
    assert [(one.trial.arm, one.stopped, one.died) for one in ended] == [(name, None, None) for name in configs]
    assert [process.returncode for process in started] == [0]
    for name, made in configs.items():
        rondo.run(made, run_dir=tmp_path / "here" / name, device="cpu")
        side, here = (
            tmp_path / place / name / "checkpoint/round-000002/state.safetensors" for place in ("side", "here")
        )
        assert side.read_bytes() == here.read_bytes()


@pytest.mark.slow
def test_process_that_dies_takes_its_run_alone(tmp_path: Path, started: list[Any]) -> None:
    jobs = [linear(tmp_path, "one"), linear(tmp_path, "two", ENDLESS), linear(tmp_path, "three")]

    def kill() -> None:
        has_begun(jobs[1])
        started[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    ended = [(one.trial.arm, one.died) for one in in_processes(jobs, 1, "cpu", "rondo compare")]
    killer.join()
    assert ended == [("one", None), ("two", "its process ended with exit code -9"), ("three", None)]
    assert [process.returncode for process in started] == [-9, 0]


@pytest.mark.slow
def test_process_that_is_told_to_stop_takes_no_further_run(tmp_path: Path, started: list[Any]) -> None:
    jobs = [linear(tmp_path, "one", ENDLESS), linear(tmp_path, "two")]

    def end() -> None:
        has_begun(jobs[0])
        started[0].terminate()

    stopper = threading.Thread(target=end)
    stopper.start()
    ended = [(one.trial.arm, one.died) for one in in_processes(jobs, 1, "cpu", "rondo compare")]
    stopper.join()
    assert ended == [("one", "its process was told to stop"), ("two", None)]
    assert [process.wait() for process in started] == [0, 0]


def test_full_disk_is_told_from_a_run_that_cannot_finish(tmp_path: Path) -> None:
    """And a search does not note it: the run can be resumed."""
    job = linear(tmp_path, "run")
    told = {"device": "cpu", "threads": torch.get_num_threads(), "shows_rounds": False, "name": "run"}
    told |= {"config": job.config.model_dump(mode="json", exclude_unset=True), "run_dir": "x"}
    with failing(runner, "run", DiskFailed("no space left")):
        answer = parallel._made(told, threading.Event())
    assert answer == {"stopped": "no space left", "disk_failed": True}
    ended = parallel.Ended(job, 1.0, "no space left", disk_failed=True)
    runs, all_ended = Runs(tmp_path), planted(parallel, "in_processes", lambda *_, **__: iter([ended]))
    with all_ended, pytest.raises(DiskFailed, match="no space left"):
        list(runs.make_all([job], "cpu", processes=2))
    assert not runs.stopped


@pytest.mark.slow
def test_refused_run_ends_the_others(tmp_path: Path, started: list[Any]) -> None:
    jobs = [linear(tmp_path, "one", ENDLESS), linear(tmp_path, "two")]
    jobs[1].folder.mkdir()
    (jobs[1].folder / "metrics.jsonl").touch()
    with pytest.raises(ConfigError, match=r"two, seed 0: .* what is left of one"):
        list(in_processes(jobs, 2, "cpu", "rondo compare"))
    assert [process.returncode for process in started] == [0, 0]


def test_stop_ends_every_process_after_its_step(tmp_path: Path, started: list[Any]) -> None:
    jobs = [linear(tmp_path, name, ENDLESS) for name in ("one", "two", "three")]
    stop = threading.Event()

    def end() -> None:
        for job in jobs[:2]:
            has_begun(job)
        stop.set()

    stopper = threading.Thread(target=end)
    stopper.start()
    with pytest.raises(RunInterrupted):
        list(in_processes(jobs, 2, "cpu", "rondo compare", stop=stop))
    stopper.join()
    assert [process.returncode for process in started] == [0, 0]
    assert not jobs[2].folder.exists()
    for job in jobs[:2]:
        assert json.loads(RunDirectory(job.folder).metrics.read_text(encoding="utf-8").splitlines()[0])["round"] == 0


@pytest.mark.slow
def test_what_is_printed_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at the start of Python nor by a library later."""
    (tmp_path / "printing").mkdir()
    (tmp_path / "printing" / "sitecustomize.py").write_text(
        "import sys\n"
        "class Chatty:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name.startswith('rondo.'): print('a library says hello', end='', flush=True)\n"
        "sys.meta_path.insert(0, Chatty())\n"
        "print('python says hello', flush=True)\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "printing"))
    ended = list(in_processes([linear(tmp_path, "one"), linear(tmp_path, "two")], 1, "cpu", "rondo compare"))
    assert [(one.stopped, one.died) for one in ended] == [(None, None)] * 2


def own_code(folder: Path, name: str, lines: str, rounds: int = 2) -> Trial:
    """A run of a method of the user's own, whose ``init`` begins with ``lines``."""
    (folder / f"{name}_code.py").write_text(
        "import os, sys, time, torch\n"
        "from rondo.algorithms.linear.rolora_linear import RoLoRALinear\n"
        "class Own(RoLoRALinear):\n"
        "    def init(self, *args):\n"
        f"{textwrap.indent(lines, '        ')}\n"
        "        return super().init(*args)\n",
        encoding="utf-8",
    )
    config = {**LINEAR, "algorithm": {"name": f"{name}_code:Own"}, "train": TRAIN, "rounds": rounds}
    return Trial(name, 0, load(config), folder / name)


@pytest.mark.slow
def test_runs_code_finds_no_standard_input_and_the_same_generator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Any]
) -> None:
    """Standard input is for jobs; which run of a process it is does not count."""
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = f"print(repr(sys.stdin.read()), torch.rand(1).item(), file=open({str(tmp_path / 'said')!r}, 'a'))"
    jobs = [own_code(tmp_path, name, lines) for name in ("one", "two")]
    assert [one.died for one in in_processes(jobs, 1, "cpu", "rondo compare")] == [None, None]
    first, second = (tmp_path / "said").read_text(encoding="utf-8").splitlines()
    assert first == second
    assert first.startswith("'' 0.")
    assert len(started) == 1


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_death_is_noticed_beside_a_child_that_lives_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: list[Any]
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    job = own_code(tmp_path, "one", "if os.fork() == 0: time.sleep(30); os._exit(0)", ENDLESS)

    def kill() -> None:
        has_begun(job)
        started[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    began = time.monotonic()
    ended = [one.died for one in in_processes([job], 1, "cpu", "rondo compare")]
    killer.join()
    assert ended == ["its process ended with exit code -9"]
    assert time.monotonic() - began < 29


@pytest.mark.slow
def test_run_is_not_given_to_a_process_that_has_died_since(tmp_path: Path, started: list[Any]) -> None:
    jobs = [linear(tmp_path, "one"), linear(tmp_path, "two")]
    ends = in_processes(jobs, 1, "cpu", "rondo compare")
    assert next(ends).died is None
    started[0].kill()
    started[0].wait()
    assert [(one.trial.arm, one.died) for one in ends] == [("two", None)]
    assert len(started) == 2


@pytest.mark.slow
def test_run_ends_with_the_process_that_gave_it(tmp_path: Path) -> None:
    job = linear(tmp_path, "one", ENDLESS)
    worker = parallel._Worker("cpu", shows_rounds=False)
    worker.give(job)
    has_begun(job)
    assert worker.process.stdin is not None
    worker.process.stdin.close()  # as at the death of the process that gave it
    assert worker.process.wait(timeout=60) == 0
    assert not (job.folder / "summary.json").exists()
