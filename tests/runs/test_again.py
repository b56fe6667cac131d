"""A cell of a notebook that is run again: refused with words for it, gone on with, or replaced."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import rondo
from outcomes import adapter, problems
from rondo.cli.app import app
from rondo.config.load import load
from rondo.records.directory import RunDirectory
from rondo.runs.again import clear
from small_runs import Watch, reviews, settings

pytestmark = pytest.mark.usefixtures("no_pictures")

TRAIN = reviews(36)


@pytest.fixture(scope="module")
def whole(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> rondo.RunResult:
    return cell(bert, tmp_path_factory.mktemp("whole") / "run")


def cell(bert: Path, run_dir: Path | None, **options: Any) -> rondo.RunResult:
    changes = options.pop("changes", {})
    return rondo.run(settings(bert, **changes), run_dir=run_dir, device="cpu", train=TRAIN, **options)


def test_refusal_names_ways_of_a_program_and_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_text("{}")
    place = str(tmp_path / "run")
    found = problems(lambda: rondo.run({}, run_dir=place))
    assert f"rondo.resume({place!r}) or resume=True, replace it by overwrite=True" in found["run_dir"]
    (tmp_path / "a.toml").write_text("rounds = 1\n")
    shown = CliRunner().invoke(app, ["run", str(tmp_path / "a.toml"), "--run-dir", place])
    assert shown.exit_code == 2
    assert f"go on with it by rondo resume {place}, replace it by --overwrite" in shown.output
    assert "--run-dir" in shown.output


def test_flags_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    assert (
        "give one of the two"
        in problems(lambda: rondo.run({}, run_dir=tmp_path, resume=True, overwrite=True))["overwrite"]
    )
    assert problems(lambda: rondo.run({}, resume=True))["run_dir"].startswith("resume needs it")
    assert problems(lambda: rondo.run({}, overwrite=True))["run_dir"].startswith("overwrite needs it")


@pytest.mark.slow
def test_cell_that_was_stopped_goes_on_and_is_then_taken_as_it_is(
    bert: Path, whole: rondo.RunResult, tmp_path: Path
) -> None:
    stop = threading.Event()
    with pytest.raises(rondo.RunInterrupted):
        cell(bert, tmp_path / "run", resume=True, observer=Watch(done=lambda done: stop.set()), stop=stop)
    result = cell(bert, tmp_path / "run", resume=True)
    assert (adapter(result.run_dir), result.metrics) == (adapter(whole.run_dir), whole.metrics)
    before = {path: path.stat().st_mtime_ns for path in result.run_dir.rglob("*")}
    again = cell(bert, tmp_path / "run", resume=True)
    assert again.metrics == whole.metrics
    assert {path: path.stat().st_mtime_ns for path in result.run_dir.rglob("*")} == before
    assert len(cell(bert, tmp_path / "run", resume=True, changes={"rounds": 3}).history) == 3


def test_cell_that_was_changed_does_not_go_on(bert: Path, whole: rondo.RunResult) -> None:
    changes = {"train": {"lr": 0.5}, "adapter": {"r": 4}}
    found = problems(lambda: cell(bert, whole.run_dir, resume=True, changes=changes))
    assert found.pop("overwrite").startswith("to replace the run, set overwrite=True")
    assert found == {"config.adapter.r": "was 2, is 4", "config.train.lr": "was 0.02, is 0.5"}


def test_overwriting_replaces_the_run_and_leaves_other_files(bert: Path, tmp_path: Path) -> None:
    first = cell(bert, tmp_path / "run", changes={"rounds": 1})
    (first.run_dir / "notes.txt").write_text("mine")
    with pytest.raises(rondo.ConfigError):  # what cannot begin replaces nothing
        cell(bert, first.run_dir, overwrite=True, changes={"task": {"text": "txt"}})
    assert RunDirectory.open(first.run_dir).finished
    second = cell(bert, first.run_dir, overwrite=True, changes={"rounds": 1, "train": {"lr": 0.01}})
    assert load(second.run_dir / "config.toml", check_paths=False).train.lr == 0.01
    assert len(second.history) == 1
    assert (second.run_dir / "notes.txt").read_text() == "mine"


def test_every_file_of_a_run_is_removed(bert: Path, tmp_path: Path) -> None:
    clear(cell(bert, tmp_path / "run", changes={"rounds": 1}).run_dir)
    assert list((tmp_path / "run").iterdir()) == []
    clear(tmp_path / "none")
