"""A run stopped anywhere, by anything, resumes as if nothing had happened."""

from __future__ import annotations

import contextlib
import errno
import functools
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

from records import timeless
from rondo import algorithms
from rondo.cli import main
from rondo.config import ConfigError, load
from rondo.errors import RunStopped
from rondo.records.directory import RunDirectory
from rondo.runs import launch, runner
from rondo.runs.assembling.assemble import assemble
from rondo.runs.loop import Onlooker, Runner
from rondo.runs.watching.progress import Quiet
from small_runs import copy_of, reviews, save_tiny_bert, settings, write_rows
from tiny_federation import stateful

KILLED = 137
WRITES = ("write", "fsync", "replace")
CALLS = (*WRITES, "mkdir", "unlink", "rmdir")
"""The functions of ``os`` that change the run directory."""


def run_settings(model: Path, rows: Path, name: str = "rolora", **changes: Any) -> dict[str, Any]:
    data = {"source": str(rows), "test_split": "", "validation_fraction": 0.25}
    return settings(model, **{**stateful(name), "data": data, **changes})


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The paths of a model and of rows."""
    folder = tmp_path_factory.mktemp("resume")
    return save_tiny_bert(folder / "bert"), write_rows(folder / "rows.csv", reviews(36))


class Started:
    """A run assembled once, which forked processes start and resume."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.ready = assemble(load(config), "cpu")
        self.first = self.ready.start()

    def start(self, folder: Path) -> None:
        directory = RunDirectory.create(folder, "x")
        launch.begin(directory, self.ready)
        Runner(self.ready, self.first, directory, Onlooker(Quiet(), None, 0.0)).run()

    def go_on(self, folder: Path) -> None:
        """Resume the run as a user would, or start anew if its manifest was not written."""
        if not (folder / "manifest.json").exists():
            return self.start(folder)
        directory = RunDirectory.open(folder)
        if not directory.finished:
            Runner(self.ready, self.first, directory, Onlooker(Quiet(), None, 0.0), resumed=True).run()
        return None


@pytest.fixture(scope="module")
def started(sources: tuple[Path, Path]) -> Callable[[str], Started]:
    """The run of a method, assembled once for all tests: they start and resume it in processes of their own."""
    return functools.cache(lambda name: Started(run_settings(*sources, name)))


def forked(work: Callable[[], object]) -> int:
    """The exit code of ``work`` in a child process: 1 with a traceback if it raised, -n if signal n ended it."""
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
    """Inside, ``act`` gets the number of every call to the functions ``names`` of ``os``, before the call is made."""
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
    """Everything that a run leaves, except for times."""
    contents: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix not in (".png", ".log")):
        name = str(path.relative_to(folder))
        if name == "metrics.jsonl":
            records = [json.loads(line) for line in path.read_text().splitlines()]
            contents[name] = list(map(timeless, records))
        elif name in ("summary.json", "manifest.json"):
            content = json.loads(path.read_text())
            contents[name] = {k: v for k, v in content.items() if k not in ("seconds", "costs", "started")}
        elif path.name == "manifest.json":  # a checkpoint's, whose journal contains times
            content = json.loads(path.read_text())["content"]
            contents[name] = {k: v for k, v in content.items() if k != "journal"}
        else:
            contents[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return contents


def calls_of(started: Started, folder: Path, names: tuple[str, ...]) -> int:
    """The number of calls to the functions ``names`` that a run in ``folder`` makes."""
    written = folder.with_name("calls")

    def work() -> None:
        with counted(lambda _: None, names) as count:
            started.start(folder)
        written.write_text(str(count[0]))

    assert forked(work) == 0
    return int(written.read_text())


def kill_everywhere(started: Started, tmp_path: Path, names: tuple[str, ...], every: int = 1) -> None:
    """Kill runs at every ``every``-th call to the functions ``names``, resume them and compare the outcome."""
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
def test_run_killed_at_a_write_resumes_to_same_bytes(started: Callable[[str], Started], tmp_path: Path) -> None:
    """Killed at every 31st write, flush or rename; the slow tests kill at every call."""
    kill_everywhere(started("rolora"), tmp_path, WRITES, every=31)


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize(
    "algorithm", [{"name": "rolora"}, pytest.param({"name": "flexlora", "sketch": 4}, marks=pytest.mark.slow)], ids=str
)
def test_run_of_masked_sums_resumes_to_same_bytes(
    algorithm: dict[str, Any], sources: tuple[Path, Path], tmp_path: Path
) -> None:
    privacy = {"adversary": "server", "secure_aggregation": True, "clip": 1.0}
    changes = {"privacy": privacy, "evaluation": {"diagnostics_every": 0}, "algorithm": algorithm}
    started = Started(run_settings(*sources, algorithm["name"], **changes))
    assert forked(lambda: started.start(tmp_path / "whole")) == 0
    cut_off(started, tmp_path / "cut", 1)
    assert forked(lambda: started.go_on(tmp_path / "cut")) == 0
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("kind", ["top-k", "rounding"])
def test_run_of_compressed_uploads_resumes_to_same_bytes(kind: str, sources: tuple[Path, Path], tmp_path: Path) -> None:
    """What clients held back is in the checkpoint, also of a client that was not in the last round."""
    started = Started(run_settings(*sources, compression={"kind": kind}))
    assert forked(lambda: started.start(tmp_path / "whole")) == 0
    held = list((tmp_path / "whole" / "checkpoint" / "clients").glob("*.safetensors"))
    assert ([file.name for file in held if b"held:" in file.read_bytes()] != []) == (kind == "top-k")
    for rounds in (1, 2):
        cut_off(started, tmp_path / f"cut-{rounds}", rounds)
        assert forked(lambda rounds=rounds: started.go_on(tmp_path / f"cut-{rounds}")) == 0  # type: ignore[misc]
        assert outcome(tmp_path / f"cut-{rounds}") == outcome(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_compressed_run_killed_at_a_write_resumes_to_same_bytes(sources: tuple[Path, Path], tmp_path: Path) -> None:
    kill_everywhere(Started(run_settings(*sources, compression={"kind": "top-k"})), tmp_path, WRITES, every=7)


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.slow
@pytest.mark.parametrize("name", algorithms.names())
def test_every_algorithm_killed_at_any_file_change(name: str, sources: tuple[Path, Path], tmp_path: Path) -> None:
    kill_everywhere(Started(run_settings(*sources, name)), tmp_path, CALLS)


def killed_at_random(times: int, sources: tuple[Path, Path], tmp_path: Path) -> None:
    """Kill runs at random moments, resumed runs too, until ``times`` kills are done and each run has finished."""
    started = Started(run_settings(*sources, "fedsa-lora", rounds=5))
    began = time.monotonic()
    assert forked(lambda: started.start(tmp_path / "whole")) == 0
    duration, expected = time.monotonic() - began, outcome(tmp_path / "whole")
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
            time.sleep(draw.uniform(0, duration))
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert code in (0, -signal.SIGKILL)
            if code == 0:
                break
            kills += 1
        assert outcome(folder) == expected, f"run {runs}, {kills} kills"


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_runs_killed_at_random_resume_to_same_bytes(sources: tuple[Path, Path], tmp_path: Path) -> None:
    killed_at_random(5, sources, tmp_path)


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.slow
def test_hundred_random_kills_resume_to_same_bytes(sources: tuple[Path, Path], tmp_path: Path) -> None:
    killed_at_random(100, sources, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_full_or_broken_disk_stops_run_and_loses_nothing(
    every: int, started: Callable[[str], Started], tmp_path: Path
) -> None:
    """Full or broken at every fifth write; the slow test at each."""
    run = started("rolora")
    count = calls_of(run, tmp_path / "whole", ("write",))
    expected = outcome(tmp_path / "whole")
    for at in range(0, count, every):
        folder, code = tmp_path / f"full-{at}", (errno.ENOSPC, errno.EIO)[at % 2]

        def full(at: int = at, folder: Path = folder, code: int = code) -> None:
            def act(number: int) -> None:
                if number == at:
                    raise OSError(code, os.strerror(code), "the disk")

            with counted(act, ("write",)):
                try:
                    run.start(folder)
                except RunStopped as error:
                    raise SystemExit(3 if os.strerror(code) in str(error) else 4) from None

        assert forked(full) == 3, f"call {at}"
        assert not list(folder.rglob("*.tmp"))
        assert forked(lambda folder=folder: run.go_on(folder)) == 0  # type: ignore[misc]
        assert outcome(folder) == expected, f"failed at call {at}"
        shutil.rmtree(folder)


# The command line


def command(*arguments: str) -> int:
    """Run ``rondo`` with these arguments in a child process."""

    def work() -> None:
        sys.argv = ["rondo", *arguments]
        main()

    return forked(work)


@pytest.fixture(scope="module")
def written(sources: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration file for 20 rounds, and beside it the run of it, ``whole``."""
    from rondo.records.directory import to_toml

    path = tmp_path_factory.mktemp("written") / "run.toml"
    path.write_text(to_toml(load(run_settings(*sources, "fedsa-lora", rounds=20))))
    assert command("run", str(path), "--run-dir", str(path.with_name("whole"))) == 0
    return path


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_run_cleanly_and_run_resumes(
    number: signal.Signals, code: int, written: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
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
    captured = capfd.readouterr()
    assert f"rondo resume '{folder}'" in captured.err
    assert "Traceback" not in captured.err
    assert not list(folder.rglob("*.tmp"))
    done = len(RunDirectory(folder).rounds())
    assert 2 < done < 20
    assert command("resume", str(folder)) == 0
    captured = capfd.readouterr()
    assert "committed rounds" in captured.err
    assert outcome(folder) == outcome(written.with_name("whole"))
    assert command("resume", str(folder)) == 0
    assert "is finished; nothing is left to do" in capfd.readouterr().out


def cut_off(started: Started, folder: Path, rounds: int) -> None:
    """Start a run in ``folder`` that dies after ``rounds`` rounds."""

    def work() -> None:
        directory = RunDirectory.create(folder, "x")
        launch.begin(directory, started.ready)
        run = Runner(started.ready, started.first, directory, Onlooker(Quiet(), None, 0.0))
        commit = run._commit

        def then_die(done: int) -> None:
            commit(done)
            if done == rounds:
                os._exit(KILLED)

        run._commit = then_die  # type: ignore[method-assign]
        run.run()

    assert forked(work) == KILLED


@pytest.fixture(scope="module")
def stopped(started: Callable[[str], Started], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of fedsa-lora that died after two of three rounds. Tests copy it."""
    folder = tmp_path_factory.mktemp("stopped") / "cut"
    cut_off(started("fedsa-lora"), folder, 2)
    return folder


@pytest.fixture
def cut(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "cut"))


@pytest.mark.slow
@pytest.mark.parametrize("skipped", [1, 3])
def test_skips_count_after_a_resume(skipped: int, sources: tuple[Path, Path], tmp_path: Path) -> None:
    """A run that is killed after skipped rounds ends as it would have ended."""
    lost = {"corrupt_upload": 0.9}
    config = run_settings(*sources, "rolora", rounds=9, seed=1, faults=lost, clients={"min_clients": 2})

    def ending(act: Callable[[], object]) -> str:
        with pytest.raises(RunStopped) as stopped:
            act()
        return str(stopped.value).replace("cut", "whole")

    whole = ending(lambda: runner.run(config, run_dir=tmp_path / "whole", device="cpu"))
    assert whole.startswith("3 rounds in a row were skipped")
    rounds = len(outcome(tmp_path / "whole")["metrics.jsonl"])
    cut_off(Started(config), tmp_path / "cut", rounds - 3 + skipped)
    assert ending(lambda: runner.resume(tmp_path / "cut")) == whole
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")
    ending(lambda: runner.resume(tmp_path / "cut", allow_nondeterministic=True))
    assert len(outcome(tmp_path / "cut")["metrics.jsonl"]) > rounds


@pytest.mark.slow
def test_patience_ends_a_resumed_run_at_the_same_round(sources: tuple[Path, Path], tmp_path: Path) -> None:
    """The learning rate sinks to nothing, so the scores stop improving."""
    rows = str(sources[1])
    changes: dict[str, Any] = {
        "rounds": 8,
        "data": {"source": rows, "test_source": copy_of(rows), "validation_fraction": 0.25},
        "train": {"local_epochs": 1, "batch_size": 4, "lr": 1e-12, "optimizer": "sgd"},
        "evaluation": {"patience": 2},
    }
    config = run_settings(*sources, "fedit", **changes)
    result = runner.run(config, run_dir=tmp_path / "whole", device="cpu")
    best = result.summary["best"]
    assert result.summary["stopped_early"]
    assert len(result.history) == best["rounds"] + 2 < 8
    assert result.metrics.keys() == {"global", "clients"} or result.metrics.keys() == {"cold_start", "personal"}
    cut_off(Started(config), tmp_path / "cut", best["rounds"] + 1)
    again = runner.resume(tmp_path / "cut")
    assert again.summary["stopped_early"]
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


@pytest.mark.slow
def test_damaged_checkpoint_is_skipped_and_reported(
    started: Callable[[str], Started], cut: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert forked(lambda: started("fedsa-lora").start(tmp_path / "whole")) == 0
    state = cut / "checkpoint" / "round-000002" / "state.safetensors"
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.write_bytes(content)
    capfd.readouterr()
    assert command("resume", str(cut)) == 0
    output = " ".join(capfd.readouterr().err.split())
    assert "damaged, not used: round-000002: state.safetensors is not as it was written" in output
    assert "going on after 1 committed rounds" in output
    assert outcome(cut) == outcome(tmp_path / "whole")


def test_resume_without_whole_checkpoint_is_refused(cut: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for generation in ("round-000001", "round-000002"):
        (cut / "checkpoint" / generation / "state.safetensors").write_bytes(b"")
    capfd.readouterr()
    assert command("resume", str(cut)) == 2
    assert "no checkpoint is as it was written, so the run cannot go on" in capfd.readouterr().err


def test_rounds_without_checkpoint_are_not_restarted(cut: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for manifest in (cut / "checkpoint").glob("round-*/manifest.json"):
        manifest.unlink()
    before = (cut / "metrics.jsonl").read_bytes()
    capfd.readouterr()
    assert command("resume", str(cut)) == 2
    assert "there is no checkpoint of any" in capfd.readouterr().err
    assert (cut / "metrics.jsonl").read_bytes() == before


def edited(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    path.write_text(text)


@pytest.mark.slow
def test_resume_lists_and_refuses_differences(
    sources: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """``--allow-nondeterministic`` goes on."""
    model, rows = shutil.copytree(sources[0], tmp_path / "bert"), shutil.copy(sources[1], tmp_path / "rows.csv")
    cut_off(Started(run_settings(Path(model), Path(rows), "fedsa-lora")), tmp_path / "cut", 2)
    for number, (change, messages) in enumerate(
        {
            lambda f: edited(f / "config.toml", ("lr = 0.02", "lr = 0.03")): ["config.train.lr: was 0.02, is 0.03"],
            lambda f: edited(f / "manifest.json", ('"threads": 1', '"threads": 7')): ["threads: was 7, is 1"],
            lambda f: edited(f / "manifest.json", ('"python": "3.', '"python": "2.')): ['python: was "2.'],
            lambda f: edited(f / "manifest.json", ('model_sha256": "', 'model_sha256": "0')): ["model_sha256: was"],
            lambda f: edited(f / "manifest.json", ('"targets_only"', '"word_of_another_version"')): [
                'targets_only.reason: was null, is "only a language model'
            ],
            lambda f: edited(Path(rows), ("good", "great")): ["partition.examples_sha256: was"],
        }.items()
    ):
        kept = Path(rows).read_bytes()
        folder = shutil.copytree(tmp_path / "cut", tmp_path / f"run-{number}")
        before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        change(folder)
        touched = {p for p, content in before.items() if p.read_bytes() != content}
        capfd.readouterr()
        assert command("resume", str(folder)) == 2
        errors = capfd.readouterr().err
        assert [message for message in messages if message not in errors] == [], errors
        assert "--allow-nondeterministic" in errors
        assert {p for p, content in before.items() if p.read_bytes() != content} == touched
        assert command("resume", str(folder), "--allow-nondeterministic") == 0
        assert len(RunDirectory(folder).rounds()) == 3
        Path(rows).write_bytes(kept)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["truncate", "unlink"])
def test_resume_on_a_disk_that_cannot_be_written_is_told(
    name: str, cut: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As on a disk that is mounted anew, read-only, after an error."""
    folder = cut
    (folder / "checkpoint" / "round-000002" / "state.safetensors.tmp").write_bytes(b"left over")

    def read_only() -> None:
        def refuse(_: int) -> None:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        with counted(refuse, (name,)):
            sys.argv = ["rondo", "resume", str(folder)]
            main()

    capfd.readouterr()
    assert forked(read_only) == 1
    errors = capfd.readouterr().err
    assert f"{folder} cannot be written: Read-only file system" in errors
    assert "Traceback" not in errors
    assert command("resume", str(folder)) == 0


def test_second_process_in_one_directory_is_refused(started: Callable[[str], Started], tmp_path: Path) -> None:
    from rondo.records import durable

    cut_off(started("rolora"), tmp_path / "cut", 1)
    with durable.locked(tmp_path / "cut"), pytest.raises(ConfigError, match="another process is running in"):
        runner.resume(tmp_path / "cut")


@pytest.mark.slow
def test_best_round_survives_a_stop(sources: tuple[Path, Path], tmp_path: Path) -> None:
    rows = sources[1]
    config = run_settings(*sources, "fedit", data={"source": str(rows), "test_source": copy_of(rows)}, rounds=4)
    started = Started(config)
    cut_off(started, tmp_path / "cut", 2)
    result = runner.resume(tmp_path / "cut")
    kind = next(iter(result.metrics))
    scores = [r["scores"][kind]["accuracy"] for r in result.history]
    best = result.summary["best"]
    assert best == {"rounds": scores.index(max(scores)) + 1, "accuracy": max(scores)}
    shorter = runner.run({**config, "rounds": best["rounds"]}, run_dir=tmp_path / "shorter", device="cpu")
    written = [
        (d / "adapter_model.safetensors").read_bytes()
        for d in (result.run_dir / "adapter-best", shorter.run_dir / "adapter")
    ]
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("key", "words"),
    [("rounds=2", "it can only get more"), ("no.such=1", "a run that goes on keeps its configuration")],
)
def test_overrides_of_a_finished_run_are_not_ignored(
    key: str, words: str, written: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert command("resume", str(written.with_name("whole")), "--set", key) == 2
    assert words in capfd.readouterr().err
