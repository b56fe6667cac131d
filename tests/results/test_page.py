"""The commands report and watch: a page of real runs, and one line for bad input."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import rondo
from kinds_of_runs import configured
from rondo.errors import ConfigError
from rondo.records import durable
from rondo.report.page.document import html, write
from rondo.results.watch import watch
from small_runs import Watch

Invoke = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of each of two seeds."""
    folder = tmp_path_factory.mktemp("pages")
    for seed in (0, 1):
        config, _ = configured("a linear problem", folder, seed=seed)
        rondo.run(config, run_dir=folder / "runs" / f"seed-{seed}", device="cpu")
    return folder / "runs"


@pytest.fixture
def copy(runs: Path, tmp_path: Path) -> Path:
    shutil.copytree(runs, tmp_path / "runs")
    return tmp_path / "runs"


def test_command_writes_a_page_of_seeds(invoke: Invoke, runs: Path) -> None:
    code, output = invoke("report", runs, "--out", "page.html")
    assert (code, output.split(",")[0]) == (0, "wrote page.html")
    text = Path("page.html").read_text(encoding="utf-8")
    assert "2 runs, 3 rounds, 2 seeds." in text
    assert "angle distance" in text


def test_page_depends_on_the_files_alone(runs: Path, copy: Path) -> None:
    assert html([runs]) == html([copy])
    assert html([runs / "seed-0", runs / "seed-1"]) == html([runs])


def test_earlier_page_is_replaced_and_no_other_file(copy: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert write([copy], out) == write([copy], out) == len(out.read_bytes())
    (tmp_path / "notes.html").write_text("<p>mine</p>")
    for taken in ("notes.html", "runs"):
        with pytest.raises(ConfigError, match="is no page of runs"):
            write([copy], tmp_path / taken)
    assert (tmp_path / "notes.html").read_text() == "<p>mine</p>"


@pytest.mark.parametrize(
    ("arguments", "fragment"),
    [
        (("report", "nowhere"), "rondo report: 1 problem\n  RUN_DIR: 'nowhere' is not a folder"),
        (("report", "."), "'.' holds no run"),
        (("report",), "Missing argument"),
        (("report", "RUNS", "--out", "no/such/page.html"), "cannot be written"),
        (("watch", "nowhere"), "rondo watch: 1 problem\n  RUN_DIR: 'nowhere' is not a run directory"),
        (("watch", "RUNS"), "is not a run directory: it has no manifest.json"),
    ],
)
def test_bad_input_is_one_line(invoke: Invoke, runs: Path, arguments: tuple[str, ...], fragment: str) -> None:
    code, output = invoke(*(str(runs) if word == "RUNS" else word for word in arguments))
    assert code == 2
    assert fragment in output
    assert list(Path().iterdir()) == []


# --- watching ------------------------------------------------------------------------------------------------------


def unfinished(folder: Path) -> bytes:
    """Make a run one of a single round; return all of its lines."""
    lines = (folder / "metrics.jsonl").read_bytes()
    (folder / "metrics.jsonl").write_bytes(lines.splitlines(keepends=True)[0])
    (folder / "summary.json").rename(folder / "summary.later")
    return lines


def test_watching_a_finished_run_shows_its_rounds(invoke: Invoke, runs: Path) -> None:
    code, output = invoke("watch", runs / "seed-0")
    lines = output.splitlines()
    assert code == 0
    assert lines[0] == "seed-0: rolora-linear, seed 0, finished, 3 of 3 rounds"
    assert [line.split(",")[0] for line in lines[1:]] == ["round 1", "round 2", "round 3"]


def test_watching_a_run_that_nobody_carries_out_ends(invoke: Invoke, copy: Path) -> None:
    unfinished(copy / "seed-0")
    code, output = invoke("watch", copy / "seed-0")
    assert code == 1
    assert f"it is not running; go on with: rondo resume {copy / 'seed-0'}" in output


def test_watching_follows_another_process(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A round comes at the first look's end, half of a line at the second's, the summary at the third's."""
    folder, looks = copy / "seed-0", iter(range(3))
    lines = unfinished(folder).splitlines(keepends=True)

    with durable.locked(folder):

        def meanwhile(seconds: float) -> None:
            step = next(looks)
            if step == 2:
                (folder / "summary.later").rename(folder / "summary.json")
            content = (b"".join(lines[:2]), b"".join(lines[:2]) + lines[2][:30], b"".join(lines))[step]
            (folder / "metrics.jsonl").write_bytes(content)

        assert watch(folder, meanwhile) == "finished"
    said = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in said if line.startswith("round")] == ["round 1", "round 2", "round 3"]
    assert "running, 1 of 3 rounds, about" in said[0]
    assert "finished, 3 of 3 rounds" in said[-2]


def test_watching_writes_nothing(runs: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in runs.rglob("*")}
    watch(runs / "seed-0")
    assert {file: file.stat().st_mtime_ns for file in runs.rglob("*")} == before


def test_watching_a_run_from_another_thread_that_trains(tmp_path: Path) -> None:
    """A real run is watched from its first round to its end."""
    config, _ = configured("a linear problem", tmp_path, rounds=6)
    begun = threading.Event()
    given = {"run_dir": tmp_path / "run", "device": "cpu", "observer": Watch(done=lambda done: begun.set())}
    thread = threading.Thread(target=rondo.run, args=(config,), kwargs=given)
    thread.start()
    assert begun.wait(60)
    assert watch(tmp_path / "run", lambda seconds: time.sleep(0.02)) == "finished"
    thread.join()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 6
