"""rondo tune: entries and configurations searched to the values of each method, after a stop too."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tomli_w

import small_entries
from records import line, summary
from rondo.config import load
from rondo.errors import RunStopped
from rondo.records.directory import RunDirectory
from rondo.study import compare, parallel
from rondo.study import runs as studies
from rondo.study.claims import entry as entries
from rondo.study.claims.trials import Trials
from rondo.study.runs import Runs, Trial
from rondo.study.score import NoScore, Score
from rondo.study.tune.tuning import Chosen, Kept, Search, Tuning
from small_entries import TRAIN
from small_runs import reviews, save_tiny_bert, settings, write_rows

Invoke = Callable[..., tuple[int, str]]

LINEAR: dict[str, Any] = {**small_entries.LINEAR, "rounds": 4, "algorithm": {"name": "rolora-linear"}, "train": TRAIN}
ENTRY = """
# What would count is written before the runs.
paper = "RoLoRA"
item = "Section 4"
title = "more rounds help"
differs = "Small."
metric = "measures.angle_distance"
lower_is_better = true
seeds = [0, 1]
seconds = 1
arms.two.rounds = 2          # half of them
arms."all four" = {}
tuning = { grid."train.lr" = [0.001, 0.3, 0.01, 0.1], seeds = [7, 8], held_out = 0.0 }

[[contrasts]]
claim = "four rounds are nearer than two"
plus = ["two"]
minus = ["all four"]
source = "none"

"""


def written(path: Path, text: str = ENTRY) -> Path:
    path.write_text(text + tomli_w.dumps({"config": LINEAR}), encoding="utf-8")
    return path


def runs(out: Path) -> dict[Path, int]:
    """The finished runs, and when each was finished."""
    return {file.parent: file.stat().st_mtime_ns for file in out.rglob("summary.json")}


def held_out_loss(run: Path) -> float:
    """The mean over clients of the last round's loss on their own rows."""
    *_, last = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    per_client = json.loads(last)["scores"]["clients"]["per_client"].values()
    return sum(scores["loss"] for scores in per_client) / len(per_client)


@pytest.fixture
def stop_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Ends the process, as it seems, after so many trials, in the middle of the next one."""

    def after(count: int) -> None:
        make, made = studies.make, list[Any]()

        def stopped(trial: Any, *others: Any) -> None:
            if len(made) == count:
                monkeypatch.setattr(studies, "make", make)
                raise SystemExit(137)
            made.append(trial)
            make(trial, *others)

        monkeypatch.setattr(studies, "make", stopped)

    return after


def kept(out: Path, name: str = "own") -> dict[str, Chosen]:
    """The values beside the runs of an entry."""
    return Kept.of(out / name).arms


def elsewhere(out: Path) -> None:
    """Take the values of ``out``, and nothing else, to a folder where no trial is."""
    (out.parent / "elsewhere" / "own").mkdir(parents=True)
    shutil.copy(out / "own" / "tuned.json", out.parent / "elsewhere" / "own")


@pytest.mark.slow
def test_entry_gets_its_values_and_reproduce_uses_them(invoke: Invoke, tmp_path: Path) -> None:
    path = written(tmp_path / "own.toml")
    before = path.read_text(encoding="utf-8")
    assert invoke("tune", path, "--out", "out", "--device", "cpu")[0] == 0
    assert path.read_text(encoding="utf-8") == before
    two = kept(tmp_path / "out")["two"]
    assert two.values == {"train.lr": 0.3}
    assert (two.trials, [len(row.scores) for row in two.tried]) == (6, [2, 2, 1, 1])
    means = [row.scores[0] for row in two.tried]
    assert means == sorted(means)
    # Elsewhere, where no trial is, nothing is searched.
    elsewhere(tmp_path / "out")
    code, said = invoke("reproduce", path, "--out", "elsewhere", "--device", "cpu")
    assert (code, "searched again" in said) == (0, False)
    assert len(runs(tmp_path / "elsewhere")) == 4
    assert not (tmp_path / "elsewhere" / "own" / "tuning").exists()
    page = (tmp_path / "elsewhere" / "pages" / "own.md").read_text(encoding="utf-8")
    assert "train.lr = 0.3" in page
    assert "At an edge of the grid, so that a wider one may suit them better: two (train.lr), all four" in page
    trials = Trials("own.toml", entries.read(str(path)), tmp_path / "elsewhere", tmp_path)
    assert trials.spent() > Kept.of(tmp_path / "out" / "own").seconds > 0


def test_arm_with_a_value_of_its_own_is_not_searched(tmp_path: Path) -> None:
    text = ENTRY.replace("arms.two.rounds = 2 ", "arms.two.rounds = 2\narms.two.train.lr = 0.2 ")
    entry = entries.read(str(written(tmp_path / "own.toml", text)))
    assert entry.searched == ["all four"]
    trials = Trials("own.toml", entry, tmp_path / "out", tmp_path)
    assert {trial.arm for trial in trials.missing_of_tuning()} == {"all four"}
    assert trials.tuned("two") == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "searched"),
    [
        ("0.1], seeds", "0.2], seeds", {"two", "all-four"}),
        ("rounds = 2 ", "rounds = 3 ", {"two"}),
        ("seeds = [7, 8]", "seeds = [8, 9]", {"two", "all-four"}),
    ],
)
def test_values_of_another_grid_or_configuration_are_searched_again(
    old: str, new: str, searched: set[str], invoke: Invoke, tmp_path: Path
) -> None:
    path = written(tmp_path / "own.toml")
    assert invoke("tune", path, "--out", "out", "--device", "cpu")[0] == 0
    elsewhere(tmp_path / "out")
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    code, said = invoke("reproduce", path, "--out", "elsewhere", "--device", "cpu", "--budget", "20s")
    assert code == 0
    assert "are of another grid, score or configuration" in said
    tried = {run.name.partition("-seed")[0] for run in runs(tmp_path / "elsewhere" / "own" / "tuning")}
    assert tried == searched
    assert invoke("tune", path, "--out", "elsewhere", "--device", "cpu")[0] == 0
    assert Trials("own.toml", entries.read(str(path)), tmp_path / "elsewhere", tmp_path).stale() == []


@pytest.mark.slow
def test_search_that_was_stopped_goes_on(invoke: Invoke, stop_after: Callable[[int], None], tmp_path: Path) -> None:
    path = written(tmp_path / "own.toml")
    stop_after(5)
    assert invoke("tune", path, "--out", "out", "--device", "cpu")[0] == 137
    assert kept(tmp_path / "out") == {}
    first = runs(tmp_path / "out")
    assert len(first) == 5
    assert invoke("tune", path, "--out", "out", "--device", "cpu")[0] == 0
    assert {run: when for run, when in runs(tmp_path / "out").items() if run in first} == first
    assert len(runs(tmp_path / "out")) == 12
    assert invoke("tune", path, "--out", "whole", "--device", "cpu")[0] == 0
    assert kept(tmp_path / "out") == kept(tmp_path / "whole")


@pytest.mark.slow
def test_search_that_was_killed_goes_on(invoke: Invoke, tmp_path: Path) -> None:
    path = written(tmp_path / "own.toml")
    program = "from rondo.cli import main; main()"
    words = [sys.executable, "-c", program, "tune", str(path), "--out", str(tmp_path / "out"), "--device", "cpu"]
    process = subprocess.Popen(words, env={**os.environ, "PYTHONWARNINGS": "ignore"}, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(runs(tmp_path / "out")) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    first = runs(tmp_path / "out")
    assert 3 <= len(first) < 12
    assert invoke("tune", path, "--out", "out", "--device", "cpu")[0] == 0
    assert {run: when for run, when in runs(tmp_path / "out").items() if run in first} == first


@pytest.mark.slow
def test_trials_side_by_side_choose_what_one_after_the_other_do(invoke: Invoke, tmp_path: Path) -> None:
    path = written(tmp_path / "own.toml")
    assert invoke("tune", path, "--out", "one", "--device", "cpu")[0] == 0
    assert invoke("tune", path, "--out", "three", "--device", "cpu", "--processes", 3)[0] == 0
    assert kept(tmp_path / "one") == kept(tmp_path / "three") != {}
    assert len(runs(tmp_path / "three")) == len(runs(tmp_path / "one"))


@pytest.mark.slow
def test_trial_whose_process_is_killed_is_told_and_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It did not stop by itself, so it must not count as the worst of all."""
    started = list[Any]()

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    folder = tmp_path / "runs"
    trials = [Trial(name, 0, load({**LINEAR, "rounds": 20_000}), folder / name) for name in ("one", "two")]

    def kill() -> None:
        while not all(RunDirectory(trial.folder).metrics.exists() for trial in trials):
            time.sleep(0.05)
        started[0].kill()

    monkeypatch.setattr(parallel.subprocess, "Popen", Recorded)
    killer = threading.Thread(target=kill)
    killer.start()
    work = Runs(folder)
    with pytest.raises(RunStopped, match="one, seed 0: its process ended with exit code -9; give it more memory"):
        list(work.make_all(trials, "cpu", processes=2))
    killer.join()
    assert [process.returncode for process in started] == [-9, 0]
    assert not any(work.done(trial) for trial in trials)
    assert [trial for trial in trials if not trial.has_begun] == []


def test_no_trial_is_started_once_the_time_is_over(tmp_path: Path) -> None:
    trial = Trial("one", 0, load(LINEAR), tmp_path / "runs" / "one")
    for processes in (1, 2):
        assert list(Runs(tmp_path / "runs").make_all([trial], "cpu", processes=processes, end=0.0)) == []
    assert not trial.has_begun


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A configuration that runs in a second."""
    folder = tmp_path_factory.mktemp("tiny")
    rows = write_rows(folder / "train.csv", reviews(48))
    return settings(save_tiny_bert(folder / "bert"), data={"source": str(rows), "test_split": ""})


@pytest.mark.slow
def test_methods_of_a_configuration_get_their_values_in_a_new_file(
    tiny: dict[str, Any], invoke: Invoke, tmp_path: Path
) -> None:
    tables = {"fedit": {"train": {"batch_size": 4}}, "fast": {"algorithm": {"name": "fedloru", "tau": 2}}}
    config = {**tiny, "rounds": 1, "task": {**tiny["task"], "metric": "loss"}}
    (tmp_path / "c.toml").write_text(tomli_w.dumps({**config, "methods": tables}), encoding="utf-8")
    words = ("--grid", "train.lr=1e-5,0.05", "--seeds", "100,101", "--to", "new.toml", "--device", "cpu")
    code, said = invoke("tune", "c.toml", *words)
    assert code == 0
    losses = {
        (run.name.partition("-seed")[0], config["train"]["lr"], config["seed"]): held_out_loss(run)
        for run in runs(tmp_path)
        for config in [json.loads((run / "manifest.json").read_text(encoding="utf-8"))["config"]]
        if config["data"]["validation_fraction"] == 0.2
    }
    best = {label: min((1e-5, 0.05), key=lambda lr: losses[label, lr, 100]) for label in tables}
    # Per method both points by the first seed, and the better one by the second.
    assert losses.keys() == {(label, lr, 100) for label in tables for lr in (1e-5, 0.05)} | {
        (label, lr, 101) for label, lr in best.items()
    }
    assert f"fast: train.lr = {best['fast']}; scores {losses['fast', best['fast'], 100]:.4g}, " in said
    assert "fast: train.lr at an edge of the grid; a wider one may suit it better" in said
    text = (tmp_path / "new.toml").read_text(encoding="utf-8")
    assert "# Score: loss on 20 % of each client's training rows, held out." in text
    assert "# fedit, 3 trials, the best first:" in text
    content = tomllib.loads(text)
    assert content["methods"]["fast"] == {**tables["fast"], "train": {"lr": best["fast"]}}
    assert content["methods"]["fedit"] == {"train": {"batch_size": 4, "lr": best["fedit"]}}
    assert {key: value for key, value in content.items() if key != "methods"} == config
    plan = compare.plan([], content)
    assert [(v.label, v.config.train.lr, v.config.train.batch_size) for v in plan][1] == ("fast", best["fast"], 8)
    # A file that is there is not written over.
    code, said = invoke("tune", "c.toml", *words)
    assert (code, "already exists" in said) == (2, True)


def test_method_without_a_table_gets_one(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(tomli_w.dumps(LINEAR), encoding="utf-8")
    code, said = invoke("tune", "c.toml", "rolora-linear", "--grid", "train.lr=0.001,0.3", "--to", "n.toml")
    assert (code, "rolora-linear: train.lr = 0.3" in said) == (0, True)
    text = (tmp_path / "n.toml").read_text(encoding="utf-8")
    assert "# Score: measures.global_loss." in text
    assert load(tmp_path / "n.toml", ["algorithm.name=rolora-linear"]).train.lr == 0.3
    assert load(tmp_path / "c.toml").train.lr == LINEAR["train"]["lr"]


@pytest.mark.slow
def test_method_that_finishes_no_trial_is_told_and_nothing_is_written(invoke: Invoke, tmp_path: Path) -> None:
    faults = {"faults": {"crash": 0.999}}
    (tmp_path / "c.toml").write_text(tomli_w.dumps({**LINEAR, **faults}), encoding="utf-8")
    code, said = invoke("tune", "c.toml", "rolora-linear", "--grid", "train.lr=0.1,0.3", "--to", "n.toml")
    assert (code, "grid, rolora-linear: not even at its best point" in said) == (2, True)
    assert not (tmp_path / "n.toml").exists()
    assert len(json.loads((tmp_path / "runs" / "tune" / "stopped.json").read_text(encoding="utf-8"))) == 2


GOOD = ("--grid", "train.lr=0.1,0.2", "--to", "new.toml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "new.toml"), "--grid: "),
        (("--processes", "0", *GOOD), "--processes: should be a number of processes, 1 or more, got 0"),
        (("--grid", "train.lr", "--to", "new.toml"), "--grid train.lr: expected KEY.PATH=VALUE,VALUE"),
        (("--grid", "train.lr=", "--to", "new.toml"), "--grid train.lr=: expected KEY.PATH=VALUE,VALUE"),
        (("--grid", "train.lr=0.1,0.1", "--to", "new.toml"), "the grid names a value of train.lr twice"),
        (("--grid", "train.lr=0.1", *GOOD), "train.lr is given twice; give all values at once"),
        (("--grid", "train.lr=0.1,fast", "--to", "new.toml"), "train.lr: rolora-linear: should be a number"),
        (("--grid", "train.lr=-1,nan", "--to", "new.toml"), "train.lr: rolora-linear: should be"),
        (("--grid", "train.rate=1,2", "--to", "new.toml"), "train.rate: rolora-linear: "),
        (
            ("--grid", "algorithm.tau=1,2", "--to", "new.toml"),
            "algorithm.tau: rolora-linear: rolora-linear has no such",
        ),
        (("--grid", "algorithm.name=fedit,rolora", "--to", "n.toml"), "one method alone cannot have this key"),
        (("--grid", "partition.clients=1,2", "--to", "new.toml"), "one method alone cannot have this key"),
        (("--grid", "rounds=1,2", "--to", "new.toml"), "--grid rounds: one method alone cannot have this key"),
        (("--grid", "train=1,2", "--to", "new.toml"), "--grid train: one method alone cannot have this key"),
        ((*GOOD, "--seeds", "0"), "--seeds: 0 is the seed of the runs: name seeds of which no run is made"),
        ((*GOOD, "--seeds", "7,7"), "a seed of the tuning is named twice"),
        ((*GOOD, "--seeds", "x"), "should be whole numbers with commas between"),
        ((*GOOD, "--seeds", "-1"), "--seeds: should be greater than or equal to 0"),
        ((*GOOD, "--held-out", "0.2"), "--held-out: a linear problem has no rows to hold out: leave it out"),
        ((*GOOD, "--held-out", "1.5"), "--held-out: should be less than 1"),
        ((*GOOD, "--trials", "2"), "trials = 2 of a grid of 2 points: leave trials out to try all"),
        ((*GOOD, "--trials", "0"), "--trials: should be greater than 0"),
        (("--grid", "train.lr=0.1"), "--to: is missing: name the file to write"),
        (("--grid", "train.lr=0.1", "--to", "no/new.toml"), "is not a folder; make it, or name another"),
        (("rolora-liner", *GOOD), "METHODS: no algorithm is called 'rolora-liner'"),
    ],
)
def test_search_that_cannot_be_is_told_before_any_trial(
    words: tuple[str, ...], message: str, invoke: Invoke, tmp_path: Path
) -> None:
    (tmp_path / "c.toml").write_text(tomli_w.dumps(LINEAR), encoding="utf-8")
    name = () if words[0].startswith("rolora") else ("rolora-linear",)
    code, said = invoke("tune", "c.toml", *name, *words)
    assert code == 2
    assert message in " ".join(said.split())
    assert not list(tmp_path.rglob("manifest.json"))


def test_search_without_methods_is_told(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(tomli_w.dumps(LINEAR), encoding="utf-8")
    code, said = invoke("tune", "c.toml", *GOOD)
    assert (code, "METHODS: none is named" in said) == (2, True)


def test_search_needs_rows_to_hold_out(tiny: dict[str, Any], invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(tomli_w.dumps(tiny), encoding="utf-8")
    code, said = invoke("tune", "c.toml", "fedit", *GOOD, "--held-out", "0")
    assert (code, "else a search would go by the test rows" in said) == (2, True)
    tables = {"fedit": {}, "whole": {"algorithm": {"name": "fedavg"}, "train": {"what": "all"}, "adapter": False}}
    (tmp_path / "c.toml").write_text(tomli_w.dumps({**tiny, "methods": tables}), encoding="utf-8")
    code, said = invoke("tune", "c.toml", "--grid", "adapter.r=1,2", "--to", "new.toml")
    assert (code, "whole goes without this section: tune it on its own" in said) == (2, True)


def test_private_method_has_no_rows_held_out(tiny: dict[str, Any], invoke: Invoke, tmp_path: Path) -> None:
    private = {"adversary": "reader", "unit": "client", "clip": 1.0, "noise": 1.0, "delta": 1e-2}
    clients = {"weighting": "uniform", "sampling": "full"}
    (tmp_path / "c.toml").write_text(tomli_w.dumps({**tiny, "privacy": private, "clients": clients}), encoding="utf-8")
    code, said = invoke("tune", "c.toml", "fedit", *GOOD)
    assert (code, "no scores of clients' rows are taken" in " ".join(said.split())) == (2, True), said
    assert not list(tmp_path.rglob("manifest.json"))


@pytest.mark.parametrize(
    ("old", "new", "words", "message"),
    [
        ("train.lr", "train.rate", (), "arm two: 1 problem train.rate: "),
        ("tuning = ", "# ", (), "tuning: the entry has no such table"),
        ('grid."train.lr" = [0.001, 0.3, 0.01, 0.1]', "grid = {}", (), "tuning.grid: "),
        ('"train.lr" = [0.001, 0.3, 0.01, 0.1]', '"train.lr" = []', (), "tuning.grid.train.lr: "),
        ("[0.001, 0.3", "[0.3, 0.3", (), "the grid names a value of train.lr twice"),
        ('grid."train.lr"', 'grid."train"', (), "arm two: 1 problem train: "),
        ("held_out = 0.0", "held_out = 0.1", (), "give the tuning held_out = 0"),
        ("held_out = 0.0", 'held_out = 0.1, metric = "diagnostics.drift_A"', (), "give the tuning held_out = 0"),
        ("held_out = 0.0", "lower_is_better = true, held_out = 0.0", (), "is of the tuning's own metric"),
        (
            "held_out = 0.0",
            "config = { seed = 3, train = { lr = 1 } }, held_out = 0.0",
            (),
            "config names train.lr, seed,",
        ),
        ("held_out = 0.0", "config = { train = { rate = 1 } }, held_out = 0.0", (), "arm two: 1 problem train.rate: "),
        ("seeds = [7, 8]", "seeds = [1]", (), "must be others than those of the runs"),
        ("held_out = 0.0", "trials = 9, held_out = 0.0", (), "trials = 9 of a grid of 4 points"),
        ("# What", "# What", ("--grid", "train.lr=1"), "--grid: an entry has its own, in [arms] and [tuning]"),
        ("# What", "# What", ("two", "--seeds", "1"), "METHODS: an entry has its own"),
        (
            "# What",
            "# What",
            ("--to", "a.toml"),
            "--to: an entry has its own, in [arms] and [tuning], and keeps its values",
        ),
    ],
)
def test_entry_that_cannot_be_searched_is_told(
    old: str, new: str, words: tuple[str, ...], message: str, invoke: Invoke, tmp_path: Path
) -> None:
    assert old in ENTRY
    path = written(tmp_path / "own.toml", ENTRY.replace(old, new, 1))
    code, said = invoke("tune", "own.toml", *words)
    assert code == 2
    assert message in " ".join(said.split())
    assert not list(tmp_path.rglob("manifest.json"))
    assert path.read_text(encoding="utf-8").startswith(ENTRY.replace(old, new, 1))


@pytest.mark.parametrize("name", ["no-such-entry", "none.toml", "../entries/rolora-table1"])
def test_target_that_is_none_is_told(name: str, invoke: Invoke) -> None:
    code, said = invoke("tune", name, *GOOD)
    assert code == 2
    assert "rondo reproduce list" in said


@pytest.mark.parametrize("content", ["{", "[]", '{"arms": {"two": 3}}', '{"seconds": -1}'])
def test_damaged_values_are_told_with_a_remedy(content: str, invoke: Invoke, tmp_path: Path) -> None:
    path = written(tmp_path / "own.toml")
    (tmp_path / "out" / "own").mkdir(parents=True)
    (tmp_path / "out" / "own" / "tuned.json").write_text(content, encoding="utf-8")
    code, said = invoke("tune", path, "--out", "out")
    assert (code, "remove it, and what is missing is made anew" in " ".join(said.split())) == (2, True), said


def test_edges_are_of_numbers_only() -> None:
    grid = {"train.lr": [0.1, 0.3, 0.2], "train.what": ["all", "head"], "adapter.r": [4], "adapter.x": [True, False]}
    tuning = Tuning(grid=grid, seeds=[1])
    point = {"train.lr": 0.3, "train.what": "all", "adapter.r": 4, "adapter.x": True}
    assert tuning.at_edge(point) == ["train.lr"]
    assert tuning.at_edge({**point, "train.lr": 0.2}) == []


@pytest.mark.skipif(find_spec("optuna") is not None, reason="optuna is installed")
def test_trials_without_optuna_name_the_package(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text(tomli_w.dumps(LINEAR), encoding="utf-8")
    code, said = invoke("tune", "c.toml", "rolora-linear", *GOOD, "--trials", "1")
    assert code == 2
    assert "needs the package optuna, which is not installed: pip install 'optuna>=4.0'" in said


@pytest.mark.slow
def test_points_of_a_large_grid_are_chosen_by_optuna(
    invoke: Invoke, stop_after: Callable[[int], None], tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    rates = "[0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.2, 0.3, 0.4]"
    text = ENTRY.replace("[0.001, 0.3, 0.01, 0.1]", f'{rates}, grid."problem.noise" = [0.0, 0.01], trials = 5')
    path = written(tmp_path / "own.toml", text)
    stop_after(3)
    assert invoke("tune", path, "--out", "cut", "--device", "cpu")[0] == 137
    assert invoke("tune", path, "--out", "cut", "--device", "cpu")[0] == 0
    assert invoke("tune", path, "--out", "whole", "--device", "cpu")[0] == 0
    assert kept(tmp_path / "cut") == kept(tmp_path / "whole")
    assert kept(tmp_path / "cut").keys() == entries.read(str(path)).arms.keys()
    for chosen in kept(tmp_path / "cut").values():
        assert len(chosen.tried) <= 5
        assert chosen.values == chosen.tried[0].values
        assert chosen.trials == sum(len(row.scores) for row in chosen.tried)
        assert chosen.values["train.lr"] > 0.01


@pytest.mark.slow
def test_rounds_of_a_search_are_not_said(
    tiny: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It has hundreds of runs, of which each has a line."""
    trial = Trial("fedit", 0, load({**tiny, "rounds": 1}), tmp_path / "runs" / "one")
    with caplog.at_level(logging.INFO, "rondo"):
        list(Runs(tmp_path / "runs").make_all([trial], "cpu"))
    assert RunDirectory(trial.folder).finished
    assert [record for record in caplog.records if record.name == "rondo"] == []


def searched(rates: Sequence[float], of: Callable[[Any], float]) -> Chosen:
    """The search of ``rates`` by two seeds, whose trials are done and have the scores ``of``, the lower the better."""
    all_done: Any = SimpleNamespace(done=lambda trial: True, has_stopped=lambda trial: False)
    score: Any = SimpleNamespace(of=of, lower_is_better=True)
    trial: Any = lambda arm, seed, point: SimpleNamespace(point=point, seed=seed)  # noqa: E731
    tuning = Tuning(grid={"train.lr": list(rates)}, seeds=[0, 1], held_out=0.0)
    return Search(all_done, tuning, score, trial).chosen("arm", "digest")


def test_half_that_goes_on_is_rounded_up() -> None:
    """The middle one of three points is the best by the second seed."""
    chosen = searched(
        [0.1, 0.2, 0.3], lambda trial: {0.1: (1, 9), 0.2: (2, 2), 0.3: (3, 0)}[trial.point["train.lr"]][trial.seed]
    )
    assert chosen.values == {"train.lr": 0.2}
    assert [len(tried.scores) for tried in chosen.tried] == [2, 2, 1]


def test_search_goes_by_the_rows_that_were_held_out(tmp_path: Path) -> None:
    """Though a method has personal scores, and scores after fine-tuning, too."""
    kinds = {"personal": 0.1, "fine_tuned": 0.2, "clients": 0.3, "validation": 0.4, "global": 0.5}
    scores = {kind: {"loss": value} for kind, value in kinds.items()}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line(0, scores=scores)) + "\n", encoding="utf-8")
    (tmp_path / "summary.json").write_text(json.dumps(summary(1, clients=1)), encoding="utf-8")
    trial = Trial("one", 0, load(LINEAR), tmp_path, held_out=True)
    assert [Score(metric).of(trial) for metric in ("loss", "own.loss")] == [0.4, 0.4]
    assert Score("own.loss").of(replace(trial, held_out=False)) == 0.2


@pytest.mark.parametrize("worst", [float("nan"), float("inf"), None])
def test_point_without_a_finite_score_is_the_worst(worst: float | None) -> None:
    """A point that diverged stands behind all others, wherever the grid has it, and its scores are named."""
    of_points = {0.1: worst, 0.2: 0.5, 0.3: 0.9, 0.4: worst}

    def of(trial: Any) -> float:
        value = of_points[trial.point["train.lr"]]
        if value is None:
            raise NoScore.at("metric", "no round has a score")
        return value

    chosen = searched(list(of_points), of)
    assert chosen.values == {"train.lr": 0.2}
    assert [(tried.values["train.lr"], tried.scores) for tried in chosen.tried] == [
        (0.2, [0.5, 0.5]),
        (0.3, [0.9, 0.9]),
        (0.1, ["not finite"]),
        (0.4, ["not finite"]),
    ]
