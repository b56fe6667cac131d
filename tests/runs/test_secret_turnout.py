"""Runs whose turnout is a secret: what is handed out for others stays the same, to the byte, whoever took part."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import rondo
from rondo.config import load
from rondo.errors import RunStopped
from rondo.records.directory import RunDirectory
from rondo.report.page.document import html
from rondo.report.terminal import summary_table
from rondo.runs.watching.result import RunResult
from rondo.study import pictures as comparisons
from rondo.study.compare.table import comparison_table
from rondo.study.runs import Runs, Trial
from small_runs import files, reviews, save_tiny_bert, settings

pytest.importorskip("dp_accounting")

NAMES = ("rolora", "ffa-lora")
ASKED: dict[str, Any] = {"target": 0.1, "at_mb": 0.001, "device": "cpu"}


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run whose server adds the noise, and draws some two of its four clients by chance."""
    folder = tmp_path_factory.mktemp("rows")
    source = files(folder, reviews(24), reviews(6, seed=1))
    return settings(
        save_tiny_bert(folder / "bert"),
        rounds=3,
        data=source,
        partition={"kind": "iid", "clients": 4},
        clients={"sampling": "poisson", "per_round": 2, "weighting": "uniform"},
        task={"labels": ["neg", "pos"]},
        privacy={"adversary": "reader", "unit": "client", "clip": 1.0, "noise": 2.0, "delta": 1e-2},
    )


@pytest.fixture(scope="module")
def compared(private: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison; do not write into it."""
    return rondo.compare(NAMES, private, out=tmp_path_factory.mktemp("compared") / "out", **ASKED).out


def change_turnout(run_dir: Path) -> None:
    """Records of other rounds: more clients were drawn, one of them failed, and all that follows from it."""
    sizes = ("bytes_up", "bytes_down", "bytes_first_contact", "server_memory_bytes", "process_memory_bytes")
    times = ("seconds", "train_seconds", "evaluation_seconds", "server_seconds")
    records = RunDirectory(run_dir).rounds()
    for record in records:
        record |= {key: 7 * (record[key] or 0) + 1 for key in (*sizes, *times, "clients")}
        record |= {"sampled": record["clients"] + 1, "rejected": {"shape": 1}}
        record["failed"] = [{"client": "client-0", "reason": "crash", "detail": "it never answered"}]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    summary = RunDirectory(run_dir).read("summary.json")
    for key in ("bytes", "seconds", "costs"):
        summary[key] = {name: 7 * (value or 0) + 1 for name, value in summary[key].items()}
    (run_dir / "summary.json").write_text(json.dumps({**summary, "failed_clients": 3}))


def printed(table: Any) -> str:
    console = Console(file=io.StringIO(), width=300, no_color=True)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def handed_out(folder: Path, private: dict[str, Any]) -> Mapping[str, str | bytes]:
    """All that a finished comparison shows, by name; its files are written anew."""
    comparison = rondo.compare(NAMES, private, out=folder, **ASKED)
    shown: dict[str, str | bytes] = {file.name: file.read_bytes() for file in sorted(folder.glob("comparison.*"))}
    shown |= {"the table": printed(comparison_table(vars(comparison))), "its notebook": comparison._repr_html_()}
    shown |= {"the frame": comparison.to_frame().to_csv(), "the page": html([folder])}
    for name in NAMES:
        run = RunDirectory(folder / f"{name}-seed-0")
        summary = run.read("summary.json")
        result = RunResult(run.rounds(), Path("run"), summary["after"], summary)
        shown |= {f"{name}, table": printed(summary_table(summary)), f"{name}, notebook": result._repr_html_()}
    return shown


def test_no_output_depends_on_how_many_took_part(compared: Path, private: dict[str, Any], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(compared, tmp_path / "out"))
    before = handed_out(folder, private)
    for name in NAMES:
        change_turnout(folder / f"{name}-seed-0")
    after = handed_out(folder, private)
    assert len(before) == 13
    assert [name for name in before if before[name] != after[name]] == []


def test_comparison_of_secret_turnouts_keeps_scores_and_rounds(compared: Path) -> None:
    content = json.loads((compared / "comparison.json").read_text())
    for run in content["runs"]:
        assert run["score"]["score"] == run["curve"][-1]["score"]
        assert [point["round"] for point in run["curve"]] == [0, 1, 2, 3]
        assert run["rounds_to_target"] == 0
        costs = (
            "bytes_up",
            "bytes_down",
            "bytes_to_target",
            "score_at_mb",
            "train_seconds",
            "server_seconds_per_round",
        )
        assert [run[key] for key in costs] == [None] * len(costs)
    table = printed(comparison_table(content))
    assert table.count("how many clients took part is a secret") == 1
    assert (compared / "comparison.tex").read_text().count("how many clients took part is a secret") == 1


def test_table_of_a_secret_turnout_says_why_it_has_no_bytes(compared: Path) -> None:
    table = printed(summary_table(RunDirectory(compared / "rolora-seed-0").read("summary.json")))
    assert "how many clients took part is a secret" in table
    assert not {"up, total", "seconds"} & set(table)


@pytest.mark.parametrize(
    ("secret", "processes"), [(True, 1), (False, 1), pytest.param(True, 2, marks=pytest.mark.slow)]
)
def test_run_that_stops_names_no_client_of_a_secret_turnout(
    private: dict[str, Any], tmp_path: Path, secret: bool, processes: int
) -> None:
    """Nor the way to its folder, which is that of its machine."""
    privacy = private["privacy"] | {"noise": 1e39} if secret else {}
    clients = {"weighting": "uniform", "sampling": "full", **({} if secret else {"min_clients": 4})}
    config = {**private, "privacy": privacy, "clients": clients, "faults": {"crash": ["client-0", "client-1"]}}
    folder = tmp_path / "out"
    comparison = rondo.compare(["rolora"], config, out=folder, device="cpu", processes=processes)
    reason = comparison.stopped[0]["reason"]
    log = (folder / "rolora-seed-0" / "run.log").read_text()
    why = "3 rounds in a row were skipped, the last: "
    if secret:
        assert reason == "why it stopped is in rolora-seed-0/run.log: it would tell who took part, which is a secret"
        assert why in log
        assert "client-0: crash" in log
    else:
        assert reason.startswith(why)
        assert "client-0: crash" in reason
        assert reason.endswith("Committed rounds are in rolora-seed-0")
    for shown in (*(file.read_text() for file in folder.glob("*.json")), html([folder])):
        assert reason in shown.replace("&#39;", "'")
        assert str(tmp_path) not in shown
        assert ("client-1: crash" in shown) is not secret


def test_trial_that_stops_names_no_client_of_a_secret_turnout(
    private: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stops(config: Any, *, run_dir: Path, **options: Any) -> None:
        raise RunStopped(f"client-0 is ill. Committed rounds are in {run_dir}")

    monkeypatch.setattr("rondo.runs.runner.run", stops)
    runs = Runs(tmp_path)
    for name, config in (("secret", private), ("open", {**private, "privacy": {}, "clients": {}})):
        list(runs.make_all([Trial(name, 0, load(config), tmp_path / name)], "cpu"))
    assert runs.stopped == {
        "secret": "why it stopped is in secret/run.log: it would tell who took part, which is a secret",
        "open": "client-0 is ill. Committed rounds are in open",
    }


def test_picture_has_lines_over_bytes_of_the_others_alone(compared: Path) -> None:
    content = json.loads((compared / "comparison.json").read_text())
    figures = [comparisons.comparison(content)]
    for point in content["runs"][0]["curve"]:
        point["bytes"] = 1000 * point["round"]
    figures.append(comparisons.comparison(content))
    assert [[len(axes.lines) for axes in figure.axes] for figure in figures] == [[2], [2, 1]]
