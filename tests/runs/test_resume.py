"""A run may be stopped anywhere, by anything, and goes on as if nothing had happened."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rondo import algorithms
from rondo.cli import main
from rondo.config import ConfigError, load
from rondo.errors import RunStopped
from rondo.runs import runner
from rondo.runs.assemble import assemble
from rondo.runs.storage.directory import RunDirectory
from small_runs import reviews, save_tiny_bert, settings, write_rows

KILLED = 137
WRITES = ("write", "fsync", "replace")
CALLS = (*WRITES, "mkdir", "unlink", "rmdir")
"""What the run directory is changed by."""


def run_settings(model: Path, rows: Path, name: str = "rolora", **changes: Any) -> dict[str, Any]:
    """Three rounds with state on the server and at the clients, two of three clients a round."""
    linear = algorithms.entry(name).linear and algorithms.get(name).same_coordinates
    sections = {
        "rounds": 3,
        "algorithm": {"name": name},
        "model": {"head": "local"},
        "data": {"source": str(rows), "test_split": "", "validation_fraction": 0.25},
        "clients": {"per_round": 2},
        "train": {"local_epochs": 1, "batch_size": 4},
        "server": {"optimizer": "adam" if linear else "none"},
        "evaluation": {"diagnostics_every": 2},
    }
    return settings(model, **{**sections, **changes})


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model and rows."""
    folder = tmp_path_factory.mktemp("resume")
    return save_tiny_bert(folder / "bert"), write_rows(folder / "rows.csv", reviews(36))


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time of so small a run, and nothing depends on them."""
    for name in ("partition", "curve"):
        monkeypatch.setattr(runner.pictures, name, lambda *_: None)


class Started:
    """A run with everything loaded once, that forked processes do and do again."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.ready = assemble(load(config), "cpu")

    def start(self, folder: Path) -> None:
        directory = RunDirectory.create(folder, "x")
        runner.begin(directory, self.ready)
        runner.Runner(self.ready, directory, None, None, 0.0).run()

    def go_on(self, folder: Path) -> None:
        """As a user would: resume what can be resumed, else start anew."""
        if not (folder / "manifest.json").exists():
            return self.start(folder)
        directory = RunDirectory.open(folder)
        if not directory.finished:
            runner.Runner(self.ready, directory, None, None, 0.0, resumed=True).run()
        return None


def forked(work: Callable[[], object]) -> int:
    """``work`` in a process of its own: its exit code; 1 and a traceback where it raised, minus a signal's number."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 1
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextlib.contextmanager
def counted(act: Callable[[int], None], names: tuple[str, ...]) -> Iterator[list[int]]:
    """Inside, ``act`` is told the number of every call that changes a file, before it is made."""
    count = [0]
    originals = {name: getattr(os, name) for name in names}

    def wrapped(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            count[0] += 1
            act(count[0] - 1)
            return originals[name](*arguments, **options)

        return call

    for name in names:
        setattr(os, name, wrapped(name))
    try:
        yield count
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves, but for the time it took."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".png"):
        name = str(path.relative_to(folder))
        if name == "metrics.jsonl":
            records = [json.loads(line) for line in path.read_text().splitlines()]
            found[name] = [{**r, "seconds": 0, "train_seconds": 0} for r in records]
        elif name in ("summary.json", "manifest.json"):
            content = json.loads(path.read_text())
            found[name] = {k: v for k, v in content.items() if k not in ("seconds", "started")}
        elif path.name == "manifest.json":  # of a checkpoint: the journal has times in it
            content = json.loads(path.read_text())["content"]
            found[name] = {k: v for k, v in content.items() if k != "journal"}
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def calls_of(started: Started, folder: Path, names: tuple[str, ...]) -> int:
    """How many calls of these the run makes in all, as it runs in ``folder``."""
    written = folder.with_name("calls")

    def work() -> None:
        with counted(lambda _: None, names) as count:
            started.start(folder)
        written.write_text(str(count[0]))

    assert forked(work) == 0
    return int(written.read_text())


def kill_everywhere(config: dict[str, Any], tmp_path: Path, names: tuple[str, ...], every: int = 1) -> None:
    """Kill a run at every call of these, or at one of ``every`` so many, and let it go on."""
    started = Started(config)
    count = calls_of(started, tmp_path / "whole", names)
    expected = outcome(tmp_path / "whole")
    assert count > 60
    for at in range(0, count, every):
        folder = tmp_path / f"killed-{at}"

        def killed(at: int = at, folder: Path = folder) -> None:
            with counted(lambda n: os._exit(KILLED) if n == at else None, names):
                started.start(folder)

        assert forked(killed) == KILLED
        assert forked(lambda folder=folder: started.go_on(folder)) == 0  # type: ignore[misc]
        assert outcome(folder) == expected, f"killed at call {at}"
        shutil.rmtree(folder)


@pytest.mark.usefixtures("no_pictures")
def test_a_run_killed_at_a_write_ends_as_one_that_was_not(sources: tuple[Path, Path], tmp_path: Path) -> None:
    kill_everywhere(run_settings(*sources, "rolora"), tmp_path, WRITES, every=3)  # the slow tests kill at every call


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms.names())
def test_so_does_one_of_every_algorithm_at_any_change_of_a_file(
    name: str, sources: tuple[Path, Path], tmp_path: Path
) -> None:
    kill_everywhere(run_settings(*sources, name), tmp_path, CALLS)


def killed_at_random(times: int, sources: tuple[Path, Path], tmp_path: Path) -> None:
    """Kill runs at any moment, the ones that go on as well, until one comes to its end."""
    started = Started(run_settings(*sources, "fedsa-lora", rounds=5))
    began = time.monotonic()
    assert forked(lambda: started.start(tmp_path / "whole")) == 0
    takes, expected = time.monotonic() - began, outcome(tmp_path / "whole")
    draw, kills, runs = random.Random(0), 0, 0
    while kills < times:
        folder = tmp_path / f"run-{runs}"
        runs += 1
        while True:
            child = os.fork()
            if child == 0:
                with contextlib.suppress(BaseException):
                    started.go_on(folder)
                    os._exit(0)
                os._exit(1)
            time.sleep(draw.uniform(0, takes))
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert code in (0, -signal.SIGKILL)
            if code == 0:
                break
            kills += 1
        assert outcome(folder) == expected, f"run {runs}, {kills} kills"


@pytest.mark.usefixtures("no_pictures")
def test_runs_killed_at_random_moments_end_as_one_that_was_not(sources: tuple[Path, Path], tmp_path: Path) -> None:
    killed_at_random(25, sources, tmp_path)


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.slow
def test_so_they_do_a_hundred_times(sources: tuple[Path, Path], tmp_path: Path) -> None:
    killed_at_random(100, sources, tmp_path)


@pytest.mark.usefixtures("no_pictures")
def test_a_disk_that_is_full_or_broken_stops_the_run_and_loses_nothing(
    sources: tuple[Path, Path], tmp_path: Path
) -> None:
    started = Started(run_settings(*sources, "rolora"))
    count = calls_of(started, tmp_path / "whole", ("write",))
    expected = outcome(tmp_path / "whole")
    for at in range(count):
        folder, code = tmp_path / f"full-{at}", (errno.ENOSPC, errno.EIO)[at % 2]

        def full(at: int = at, folder: Path = folder, code: int = code) -> None:
            def act(number: int) -> None:
                if number == at:
                    raise OSError(code, os.strerror(code), "the disk")

            with counted(act, ("write",)):
                try:
                    started.start(folder)
                except RunStopped as error:
                    raise SystemExit(3 if os.strerror(code) in str(error) else 4) from None

        assert forked(full) == 3, f"call {at}"
        assert not list(folder.rglob("*.tmp"))
        assert forked(lambda folder=folder: started.go_on(folder)) == 0  # type: ignore[misc]
        assert outcome(folder) == expected, f"failed at call {at}"
        shutil.rmtree(folder)


# What a user sees


def command(*arguments: str) -> int:
    """``rondo`` with these arguments in a process of its own."""

    def work() -> None:
        sys.argv = ["rondo", *arguments]
        main()

    return forked(work)


@pytest.fixture
def written(sources: tuple[Path, Path], tmp_path: Path) -> Path:
    """A configuration of 30 rounds in a file."""
    from rondo.runs.storage.directory import to_toml

    path = tmp_path / "run.toml"
    path.write_text(to_toml(load(run_settings(*sources, "fedsa-lora", rounds=30))))
    return path


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_run_cleanly_and_it_can_be_resumed(
    number: signal.Signals, code: int, written: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command("run", str(written), "--run-dir", str(tmp_path / "whole")) == 0
    folder = tmp_path / "a run"
    child = os.fork()
    if child == 0:
        sys.argv = ["rondo", "run", str(written), "--run-dir", str(folder)]
        try:
            main()
        except SystemExit as leaving:
            os._exit(leaving.code if isinstance(leaving.code, int) else 1)
        os._exit(0)
    for _ in range(600):
        time.sleep(0.05)
        if (folder / "metrics.jsonl").exists() and (folder / "metrics.jsonl").read_bytes().count(b"\n") > 2:
            break
    capfd.readouterr()
    os.kill(child, number)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == code
    said = capfd.readouterr()
    assert f"rondo resume '{folder}'" in said.err
    assert "Traceback" not in said.err
    assert not list(folder.rglob("*.tmp"))
    done = len(RunDirectory(folder).rounds())
    assert 2 < done < 30
    assert command("resume", str(folder)) == 0
    said = capfd.readouterr()
    assert "committed rounds" in said.out
    assert outcome(folder) == outcome(tmp_path / "whole")
    assert command("resume", str(folder)) == 0
    assert "is finished; nothing is left to do" in capfd.readouterr().out


def cut_off(started: Started, folder: Path, rounds: int) -> None:
    """A run that was stopped after ``rounds`` rounds."""

    def work() -> None:
        directory = RunDirectory.create(folder, "x")
        runner.begin(directory, started.ready)
        one = runner.Runner(started.ready, directory, None, None, 0.0)
        commit = one._commit

        def then_die(done: int) -> None:
            commit(done)
            if done == rounds:
                os._exit(KILLED)

        one._commit = then_die  # type: ignore[method-assign]
        one.run()

    assert forked(work) == KILLED


def test_a_damaged_checkpoint_is_passed_over_and_that_is_said(
    sources: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    started = Started(run_settings(*sources, "fedsa-lora"))
    assert forked(lambda: started.start(tmp_path / "whole")) == 0
    cut_off(started, tmp_path / "cut", 2)
    state = tmp_path / "cut" / "checkpoint" / "round-000002" / "state.safetensors"
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.write_bytes(content)
    capfd.readouterr()
    assert command("resume", str(tmp_path / "cut")) == 0
    said = " ".join(capfd.readouterr().out.split())
    assert "not used, for it is damaged: round-000002: state.safetensors is not as it was written" in said
    assert "going on after 1 committed rounds" in said
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def test_without_a_whole_checkpoint_it_is_refused(
    sources: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    started = Started(run_settings(*sources, "rolora"))
    cut_off(started, tmp_path / "cut", 2)
    for place in ("round-000001", "round-000002"):
        (tmp_path / "cut" / "checkpoint" / place / "state.safetensors").write_bytes(b"")
    capfd.readouterr()
    assert command("resume", str(tmp_path / "cut")) == 2
    assert "no checkpoint is as it was written, so the run cannot go on" in capfd.readouterr().err


def test_rounds_without_any_checkpoint_are_not_begun_again(
    sources: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    started = Started(run_settings(*sources, "fedsa-lora"))
    cut_off(started, tmp_path / "cut", 2)
    for manifest in (tmp_path / "cut" / "checkpoint").glob("round-*/manifest.json"):
        manifest.unlink()
    before = (tmp_path / "cut" / "metrics.jsonl").read_bytes()
    capfd.readouterr()
    assert command("resume", str(tmp_path / "cut")) == 2
    assert "there is no checkpoint of any" in capfd.readouterr().err
    assert (tmp_path / "cut" / "metrics.jsonl").read_bytes() == before


def edited(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path.write_text(text)


def test_what_differs_is_listed_and_refused_unless_that_is_wanted(
    sources: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, rows = shutil.copytree(sources[0], tmp_path / "bert"), shutil.copy(sources[1], tmp_path / "rows.csv")
    started = Started(run_settings(Path(model), Path(rows), "fedsa-lora"))
    for number, (change, told) in enumerate(
        {
            lambda f: edited(f / "config.toml", ("lr = 0.02", "lr = 0.03")): ["config.train.lr: was 0.02, is 0.03"],
            lambda f: edited(f / "manifest.json", ('"threads": 1', '"threads": 7')): ["threads: was 7, is 1"],
            lambda f: edited(f / "manifest.json", ('"python": "3.', '"python": "2.')): ['python: was "2.'],
            lambda f: edited(f / "manifest.json", ('model_sha256": "', 'model_sha256": "0')): ["model_sha256: was"],
            lambda f: edited(f / "manifest.json", ('"targets_only"', '"word_of_another_version"')): [
                'targets_only.reason: was null, is "a classifier'
            ],
            lambda f: edited(Path(rows), ("good", "great")): ["partition.examples_sha256: was"],
        }.items()
    ):
        kept = Path(rows).read_bytes()
        folder = tmp_path / f"run-{number}"
        cut_off(started, folder, 2)
        before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        change(folder)
        touched = {p for p, content in before.items() if p.read_bytes() != content}
        capfd.readouterr()
        assert command("resume", str(folder)) == 2
        said = capfd.readouterr().err
        assert all(words in said for words in told), said
        assert "--allow-nondeterministic" in said
        assert {p for p, content in before.items() if p.read_bytes() != content} == touched
        assert command("resume", str(folder), "--allow-nondeterministic") == 0
        assert len(RunDirectory(folder).rounds()) == 3
        Path(rows).write_bytes(kept)


def test_two_processes_do_not_write_one_directory(sources: tuple[Path, Path], tmp_path: Path) -> None:
    from rondo.runs.storage import durable

    started = Started(run_settings(*sources, "rolora"))
    cut_off(started, tmp_path / "cut", 1)
    with durable.locked(tmp_path / "cut"), pytest.raises(ConfigError, match="another process is running in"):
        runner.resume(tmp_path / "cut")


def test_the_best_round_is_known_after_a_stop(sources: tuple[Path, Path], tmp_path: Path) -> None:
    rows = sources[1]
    config = run_settings(*sources, "fedit", data={"source": str(rows), "test_source": str(rows)}, rounds=4)
    started = Started(config)
    cut_off(started, tmp_path / "cut", 2)
    result = runner.resume(tmp_path / "cut")
    kind = next(iter(result.metrics))
    scores = [r["scores"][kind]["accuracy"] for r in result.history]
    best = result.summary["best"]
    assert best == {"rounds": scores.index(max(scores)) + 1, "accuracy": max(scores)}
