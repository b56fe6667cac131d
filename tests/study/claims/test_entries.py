"""Entries from their file to a verdict: in one go, after a kill, and with a tuning."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rondo.cli import app
from rondo.config.papers.writer import SETTINGS
from rondo.errors import ConfigError, DiskFailed
from rondo.runs import runner
from rondo.study.claims import entry as entries
from rondo.study.claims.findings import findings
from rondo.study.claims.trials import Trials
from small_entries import ENTRY, TRAIN, decided, page, written
from watched import failing


@pytest.fixture(scope="module")
def decided_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an entry that is decided; do not write into it."""
    folder = tmp_path_factory.mktemp("decided")
    decided(written(folder), folder / "out")
    return folder


def test_entry_comes_to_its_verdict_and_keeps_it(tmp_path: Path) -> None:
    path = written(tmp_path)
    said = decided(path, tmp_path / "out")
    assert "alternating is nearer" in said
    assert ", seen\n" in said
    lines = page(tmp_path / "out")
    assert "**seen**: above zero, and at least half" in "\n".join(lines)
    table = (tmp_path / "out" / "pages" / "all.md").read_text(encoding="utf-8")
    assert "[alternating is nearer](own.md) | 0.2 (none) |" in table
    assert (tmp_path / "out" / "pages" / "own.png").read_bytes().startswith(b"\x89PNG")
    runs = {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "own").rglob("summary.json")}
    assert len(runs) == 6
    decided(path, tmp_path / "out")
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "out" / "own").rglob("summary.json")} == runs
    assert page(tmp_path / "out") == lines


def test_budget_that_is_over_starts_no_run_and_says_what_is_missing(tmp_path: Path) -> None:
    decided(written(tmp_path), tmp_path / "out", "--budget", "0s")
    assert not list((tmp_path / "out" / "own").rglob("manifest.json"))
    lines = page(tmp_path / "out")
    assert lines[-1].startswith("No run is there yet; all of them take")
    counts = "| alternating is nearer | 0.2 (none) | significantly above zero, and at least 0.1 |"
    assert f"{counts} - | **open**: no seed has all runs yet | - | - | 0 |" in lines
    assert not [line for line in lines if line.startswith("| arm")]
    table = (tmp_path / "out" / "pages" / "all.md").read_text(encoding="utf-8")
    assert "[alternating is nearer](own.md) | 0.2 (none) | - | 0 | open |" in table


def test_trials_of_a_tuning_without_a_run_that_counts_are_told(tmp_path: Path) -> None:
    tuning = {"grid": {"train.lr": [0.1, 0.3]}, "seeds": [7], "held_out": 0.0}
    train = {key: value for key, value in TRAIN.items() if key != "lr"}
    arms = {"alternating": {"algorithm": {"name": "rolora-linear"}, "train": train}}
    bound = {"claim": "it is near", "arm": "alternating", "at_most": 0.5, "source": "Lemma 0"}
    path = written(tmp_path, arms=arms, contrasts=[], bounds=[bound], tuning=tuning, lower_is_better=True)
    trials = Trials("own", entries.read(str(path)), tmp_path / "out", tmp_path)
    first, _ = trials.missing()
    list(trials.make_all([first], "cpu"))
    decided(path, tmp_path / "out", "--budget", "0s")
    said = (tmp_path / "out" / "pages" / "own.md").read_text(encoding="utf-8")
    assert "only trials of the tuning: 1, in 0.00 h. What is missing takes about" in said
    assert "| it is near | at most 0.5 (Lemma 0) | every run keeps it | - |" in said


@pytest.mark.slow
def test_runs_side_by_side_come_to_the_same_page(tmp_path: Path) -> None:
    path = written(tmp_path)
    decided(path, tmp_path / "one")
    said = decided(path, tmp_path / "three", "--processes", "3")
    assert said.count(" s\n") == 6
    assert page(tmp_path / "three") == page(tmp_path / "one")


@pytest.mark.slow
def test_killed_half_way_it_ends_as_without_the_kill(tmp_path: Path) -> None:
    path = written(tmp_path)
    decided(path, tmp_path / "whole")
    command = [
        sys.executable,
        "-c",
        "from rondo.cli import main; main()",
        "reproduce",
        str(path),
        "--out",
        str(tmp_path / "cut"),
        "--device",
        "cpu",
    ]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "cut").rglob("manifest.json"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 3 <= len(list((tmp_path / "cut").rglob("manifest.json"))) < 6
    decided(path, tmp_path / "cut")
    assert page(tmp_path / "cut") == page(tmp_path / "whole")


@pytest.mark.slow
def test_tuning_takes_the_best_of_one_grid_and_leaves_the_worse_half_out(tmp_path: Path) -> None:
    tuning = {"grid": {"train.lr": [0.001, 0.01, 0.1, 0.3]}, "seeds": [7, 8, 9], "held_out": 0.0}
    train = {**TRAIN}
    del train["lr"]
    arms = {
        "alternating": {"algorithm": {"name": "rolora-linear"}, "train": train},
        "half the rounds": {"algorithm": {"name": "rolora-linear"}, "train": train, "rounds": 2},
    }
    contrasts = [{"claim": "more rounds help", "plus": ["half the rounds"], "minus": ["alternating"], "source": "none"}]
    path = written(tmp_path, arms=arms, contrasts=contrasts, tuning=tuning, lower_is_better=True)
    decided(path, tmp_path / "out")
    trials = Trials("own", entries.read(str(path)), tmp_path / "out", tmp_path)
    assert [trials.tuned(arm) for arm in arms] == [{"train.lr": 0.3}] * 2
    tried = [p.parent.name for p in (tmp_path / "out" / "own" / "tuning").rglob("summary.json")]
    per_seed = [sum(name.startswith(f"alternating-seed-{seed}-") for name in tried) for seed in (7, 8, 9)]
    assert per_seed == [4, 2, 1]
    rates = {
        json.loads((p.parent / "manifest.json").read_text(encoding="utf-8"))["config"]["train"]["lr"]
        for p in (tmp_path / "out" / "own").glob("*/summary.json")
    }
    assert rates == {0.3}
    assert findings(trials)[0].verdict.word == "seen, smaller"


@pytest.mark.slow
def test_trials_have_a_score_and_tables_of_their_own(tmp_path: Path) -> None:
    """By the largest distance after one round the smallest rate is the best, and runs have their own rounds."""
    own = {"metric": "measures.angle_distance", "lower_is_better": False, "config": {"rounds": 1}}
    tuning = {"grid": {"train.lr": [0.001, 0.3]}, "seeds": [7], "held_out": 0.0}
    train = {key: value for key, value in TRAIN.items() if key != "lr"}
    arms = {"alternating": {"algorithm": {"name": "rolora-linear"}, "train": train}}
    bound = {"claim": "it is near", "arm": "alternating", "at_most": 0.5, "source": "Lemma 0"}
    more: dict[str, Any] = {"arms": arms, "contrasts": [], "bounds": [bound], "lower_is_better": True}
    digests = []
    for name, keys, rate in (("as-runs", {}, 0.3), ("own", own, 0.001)):
        folder = tmp_path / name
        folder.mkdir()
        path = written(folder, tuning={**tuning, **keys}, **more)
        decided(path, folder / "out")
        entry = entries.read(str(path))
        trials = Trials("own", entry, folder / "out", tmp_path)
        assert trials.tuned("alternating") == {"train.lr": rate}
        tried = {trial.config.rounds for trial in trials.here() if trial.is_tuning}
        assert tried == {keys.get("config", entry.config)["rounds"]}
        assert {trial.config.rounds for trial in trials.runs()} == {entry.config["rounds"]}
        digests.append(entry.digest("alternating"))
    said = (tmp_path / "own" / "out" / "pages" / "own.md").read_text(encoding="utf-8")
    assert 'where the largest `measures.angle_distance` is the best, and with `{"rounds" = 1}` in the trials.' in said
    assert len(set(digests)) == 2


@pytest.mark.slow
def test_full_disk_ends_the_command_and_no_run_for_good(tmp_path: Path) -> None:
    path, out = written(tmp_path), tmp_path / "out"
    with failing(runner, "run", DiskFailed("no space left")):
        said = CliRunner().invoke(app, ["reproduce", str(path), "--out", str(out), "--device", "cpu"])
    assert said.exit_code == 1
    assert "no space left" in said.output
    assert not (out / "own" / "stopped.json").exists()
    decided(path, out)
    assert not (out / "own" / "stopped.json").exists()


@pytest.mark.slow
def test_run_begun_otherwise_is_named_with_a_remedy_that_there_is(tmp_path: Path) -> None:
    path, out = written(tmp_path), tmp_path / "out"
    decided(path, out)
    begun = next((out / "own").glob("frozen-seed-1-*"))
    (begun / "summary.json").unlink()
    manifest = json.loads((begun / "manifest.json").read_text(encoding="utf-8"))
    (begun / "manifest.json").write_text(json.dumps({**manifest, "threads": 99}), encoding="utf-8")
    for more in ([], ["--processes", "2"]):
        said = CliRunner().invoke(app, ["reproduce", str(path), "--out", str(out), "--device", "cpu", *more])
        words = " ".join(said.output.split())
        assert said.exit_code == 2
        assert "threads: " in words
        assert "was 99, is" in words
        assert f"or remove {begun}, and the run is made anew" in words
        assert "--allow-nondeterministic" not in words


@pytest.mark.slow
def test_page_names_no_stopped_run_that_is_no_part_of_it(tmp_path: Path) -> None:
    path, out = written(tmp_path), tmp_path / "out"
    decided(path, out)
    (out / "own" / "stopped.json").write_text(json.dumps({"frozen-seed-0-former": "crashed"}), encoding="utf-8")
    decided(path, out)
    assert not [line for line in page(out) if "stopped" in line]


@pytest.mark.slow
def test_page_names_every_environment_of_its_runs(tmp_path: Path) -> None:
    path, out = written(tmp_path), tmp_path / "out"
    decided(path, out)
    file = next((out / "own").glob("frozen-seed-1-*")) / "manifest.json"
    manifest = json.loads(file.read_text(encoding="utf-8"))
    manifest |= {"threads": 99, "versions": {**manifest["versions"], "torch": "0.1"}}
    manifest |= {"processor": "another", "kernels": {"dtype": "bfloat16"}}
    file.write_text(json.dumps(manifest), encoding="utf-8")
    decided(path, out)
    made = (out / "pages" / "own.md").read_text(encoding="utf-8").splitlines()[-1]
    assert ", products in float64) and cpu with 99 threads (another, products in bfloat16); " in made
    assert ", torch 0.1 and 2." in made


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pages", "FILE"], "is not a folder to write into"),
        (["--out", "FILE"], "is not a folder to write into"),
        (["--budget=-5s"], "is not a time"),
        (["--budget", "nans"], "is not a time"),
    ],
)
def test_bad_option_is_told_before_a_run(options: list[str], message: str, tmp_path: Path) -> None:
    path = written(tmp_path)
    given = [str(path) if option == "FILE" else option for option in options]
    said = CliRunner().invoke(app, ["reproduce", str(path), "--out", str(tmp_path / "out"), "--device", "cpu", *given])
    assert said.exit_code == 2
    assert message in " ".join(said.output.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_run_that_stops_counts_with_its_last_score_and_is_named(tmp_path: Path) -> None:
    arms = {
        **ENTRY["arms"],
        "wild": {"algorithm": {"name": "rolora-linear"}, "train": TRAIN, "faults": {"crash": 0.999}},
    }
    path = written(tmp_path, arms=arms, seeds=[0, 1])
    decided(path, tmp_path / "out")
    stopped = json.loads((tmp_path / "out" / "own" / "stopped.json").read_text(encoding="utf-8"))
    assert [name.partition("-seed")[0] for name in stopped] == ["wild", "wild"]
    assert "stopped and counts with its last score" in "\n".join(page(tmp_path / "out"))


@pytest.mark.parametrize(
    ("changes", "path", "message"),
    [
        ({"contrasts": [{**ENTRY["contrasts"][0], "plus": ["none"]}]}, "", "arms that are not there: none"),
        ({"tuning": {"grid": {"train.lr": [1.0]}, "seeds": [2]}}, "", "must be others than those of the runs"),
        ({"seeds": []}, "seeds", "at least 1 item"),
        ({"metrik": "x"}, "metrik", "unknown key; did you mean 'metric'"),
    ],
)
def test_entry_that_is_none_is_refused(tmp_path: Path, changes: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        entries.read(str(written(tmp_path, **changes)))
    assert refused.value.problems[0].path == path


def test_entries_of_one_file_share_its_keys_and_have_their_own() -> None:
    homes, sites = (entries.read(f"privacy-{name}-homes") for name in ("clients-100", "rows-10"))
    assert {homes.config["data"]["source"], sites.config["data"]["source"]} == {"builtin:home-intents"}
    assert (homes.config["partition"]["kind"], sites.config["partition"]["kind"]) == ("natural", "iid")
    assert homes.tuning is not None
    assert sites.tuning is not None
    assert (list(homes.tuning.grid), list(sites.tuning.grid)) == (["train.lr", "privacy.clip"], ["train.lr"])
    assert "privacy-homes" not in entries.names()


@pytest.mark.slow
def test_page_of_ones_own_entry_tells_its_command(tmp_path: Path) -> None:
    path = written(tmp_path).rename(tmp_path / "my own.toml")
    decided(path, tmp_path / "out")
    pages = tmp_path / "out" / "pages"
    assert "    rondo reproduce 'my own.toml'" in (pages / "my own.md").read_text(encoding="utf-8").splitlines()
    index = (pages / "all.md").read_text(encoding="utf-8")
    assert "`rondo reproduce 'my own.toml'`" in index
    assert "[alternating is nearer](my%20own.md)" in index


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (f"{entries.names()[0]}.toml", "whose runs and page it would share: rename the file"),
        ("ReadMe.toml", "has a name that a folder of pages takes for another use"),
        ("..toml", "has a name that a folder of pages takes for another use"),
        ("\udcff.toml", "is no name in UTF-8"),
    ],
)
@pytest.mark.parametrize("command", ["reproduce", "tune"])
def test_file_whose_page_would_be_anothers_is_refused(command: str, name: str, message: str, tmp_path: Path) -> None:
    tuning = {"grid": {"train.lr": [0.1, 0.3]}, "seeds": [7], "held_out": 0.0}
    try:
        path = written(tmp_path, tuning=tuning).rename(tmp_path / name)
    except OSError:
        pytest.skip("this disk has no such names")
    result = CliRunner().invoke(app, [command, str(path), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["summary.json", "manifest.json", "metrics.jsonl"])
def test_damaged_entry_is_left_out_of_all(
    name: str, decided_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shutil.copytree(decided_once / "out", tmp_path / "out")
    (out / "own").rename(out / "one")
    shutil.copytree(out / "one", out / "two")
    text = (decided_once / "own.toml").read_text(encoding="utf-8")
    monkeypatch.setattr(entries, "names", lambda: ["one", "two"])
    monkeypatch.setattr(entries, "raw", lambda name: tomllib.loads(text))
    (next((out / "one").glob("frozen-seed-0-*")) / name).write_text("{", encoding="utf-8")
    result = CliRunner().invoke(app, ["reproduce", "all", "--out", str(out), "--budget", "0s"])
    assert result.exit_code == 2
    said = result.output.splitlines()
    assert [line for line in said if line.startswith("one is left out: --out: ")]
    assert said[-1] == f"two: {out / 'pages' / 'two.md'}"


@pytest.mark.sweep(5)
@pytest.mark.parametrize("content", ["{}", "[]", "3", "not JSON"])
@pytest.mark.parametrize(
    "name", ["RUN/summary.json", "RUN/manifest.json", "RUN/metrics.jsonl", "stopped.json", "facts"]
)
def test_damaged_file_is_named_with_a_remedy(name: str, content: str, decided_once: Path, tmp_path: Path) -> None:
    shutil.copytree(decided_once, tmp_path, dirs_exist_ok=True)
    out = tmp_path / "out"
    run = next((out / "own").glob("frozen-seed-0-*")).name
    file = out / "pages" / "facts" / "a.json" if name == "facts" else out / "own" / name.replace("RUN", run)
    file.write_text(content, encoding="utf-8")
    result = CliRunner().invoke(app, ["reproduce", str(tmp_path / "own.toml"), "--out", str(out), "--budget", "0s"])
    if (name, content) == ("stopped.json", "{}"):
        assert result.exit_code == 0
        return
    assert result.exit_code == 2, result.output
    place = file.parent if name.startswith("RUN") else file
    assert f"--out: {str(place)!r}: " in result.output
    assert "remove it, and what is missing is made anew" in result.output


def test_missing_files_and_names_are_told(tmp_path: Path) -> None:
    path = written(tmp_path, files={"mnist/mnist.npz": "the moon"})
    result = CliRunner().invoke(app, ["reproduce", str(path), "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    assert result.exit_code == 2
    assert "to be had from the moon" in " ".join(result.output.split())
    result = CliRunner().invoke(app, ["reproduce", "no-such"])
    assert (result.exit_code, result.output.splitlines()[0]) == (2, "rondo reproduce: 1 problem")
    with pytest.raises(ConfigError, match="rondo reproduce list"):
        entries.read("no-such")


def test_list_has_hours_and_data() -> None:
    result = CliRunner().invoke(app, ["reproduce", "list"])
    lines = {line.split()[0]: line for line in result.output.splitlines()}
    assert list(lines) == entries.names()
    entry = entries.read("rolora-figure5")
    assert entry.tuning is not None
    assert entry.tuning.size == 5
    assert entry.hours == pytest.approx(60 * (4 * 5 + 6 * 10) / 3600)  # with its search, which two arms have not
    assert " 1.33 h  RoLoRA, Figure 5: " in lines["rolora-figure5"]
    assert lines["rolora-figure5"].endswith("; needs mnist/mnist.npz")
    assert "needs" not in lines["rolora-theorem4-5"]


@pytest.mark.parametrize("name", entries.names())
def test_every_entry_that_comes_with_rondo_is_whole(name: str) -> None:
    entry = entries.read(name)
    for arm in entry.arms:
        points = {} if entry.tuning is None else {key: values[0] for key, values in entry.tuning.grid.items()}
        entry.run(arm, entry.seeds[0], Path("data"), points, check=False)
    assert len(entry.seeds) >= 5


@pytest.mark.parametrize("name", entries.names())
def test_claims_of_papers_have_ten_seeds_where_a_run_takes_less_than_a_minute(name: str) -> None:
    entry = entries.read(name)
    assert entry.paper == "No paper" or entry.seconds >= 60 or len(entry.seeds) >= 10


@pytest.mark.parametrize("name", entries.names())
def test_mean_of_last_scores_is_of_the_end_of_training(name: str) -> None:
    """``last`` counts scores, which are as many rounds apart as the arm's configuration says."""
    entry = entries.read(name)
    if "the mean of all rounds" in entry.differs:
        return
    kind = entry.metric.partition(".")[0]
    points = {} if entry.tuning is None else {key: values[0] for key, values in entry.tuning.grid.items()}
    for arm in entry.arms:
        run = entry.run(arm, entry.seeds[0], Path("data"), points, check=False)
        apart = {
            "global": run.evaluation.every,
            "personal": run.evaluation.clients_every,
            "own": run.evaluation.clients_every,
            "diagnostics": run.evaluation.diagnostics_every,
            "measures": entry.every,
        }[kind]
        assert isinstance(apart, int)
        assert (entry.last - 1) * apart < run.rounds / 2, arm


@pytest.mark.parametrize("paper", ["FedRep", "FLoRG", "RoLoRA"])
def test_clients_weigh_as_in_the_papers_settings(paper: str) -> None:
    """FedLoRU's clients weigh by their rows; those of its entries have equally many."""
    stated = {s.keys["clients.weighting"] for name, s in SETTINGS.items() if name.startswith(f"{paper.lower()}/")}
    of_paper = {name: entry for name in entries.names() if (entry := entries.read(name)).paper == paper}
    assert {
        n for n, e in of_paper.items() for arm in e.arms if e.tree(arm)["clients"]["weighting"] not in stated
    } == set()


@pytest.mark.parametrize(
    ("name", "arm", "clients", "rows", "inputs", "rank", "share"),
    [
        ("fedrep-figure3", "fedrep-20", 20, 5, 10, 2, 0.1),
        ("fedrep-figure3", "gd-gd-500", 500, 5, 10, 2, 0.1),
        ("fedrep-figure4", "fedrep", 100, None, 20, 2, 0.1),
    ],
)
def test_sizes_of_fedreps_linear_figures_are_the_papers(
    name: str, arm: str, clients: int, rows: int | None, inputs: int, rank: int, share: float
) -> None:
    """Section 5.1 and appendix A.1: d, k, m, r of Figure 3, and n, d, k of Figure 4."""
    config = entries.read(name).run(arm, 0, Path(), {}, check=False)
    problem = config.problem
    assert (problem.clients, problem.inputs, problem.rank) == (clients, inputs, rank)
    assert rows in (None, problem.rows)
    assert config.clients.per_round == round(share * clients)
