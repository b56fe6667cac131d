"""The command data: rows as a run would deal them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

import rondo
from rondo.cli import app
from rondo.runs.assembling import assemble
from small_runs import reviews, save_tiny_bert, settings, write_rows


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    save_tiny_bert(folder / "bert")
    rows = reviews(60)
    rows[7]["text"] = " ".join(["the"] * 40)
    write_rows(folder / "rows.csv", rows)
    write_rows(folder / "test.csv", reviews(10, seed=1))
    data = {"source": str(folder / "rows.csv"), "test_source": str(folder / "test.csv")}
    content = settings(
        folder / "bert", rounds=1, data=data, partition={"kind": "natural", "column": "who", "clients": None}
    )
    (folder / "run.toml").write_text(tomli_w.dumps(content), encoding="utf-8")
    return folder / "run.toml"


def invoke(*arguments: Any) -> Any:
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


def test_rows_labels_lengths_and_cuts_are_shown_without_weights(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble.Outline, "load", lambda *_: pytest.fail("weights were loaded"))
    result = invoke(config)
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.output.splitlines()]
    assert lines[:2] == ["3 clients", "client train validation test neg pos"]
    assert [line for line in lines if line.startswith("all ")] == ["all 45 15 10 30 30"]
    assert "training rows: 7 tokens in the median row, 7 at 90 %, 32 in the longest, of 32 at most" in lines
    assert "test rows: 7 tokens in the median row, 7 at 90 %, 7 in the longest, of 32 at most" in lines
    assert [line for line in lines if "are cut to task.max_length" in line]


def test_account_is_that_of_the_run(config: Path, tmp_path: Path) -> None:
    run = rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    assert json.loads(invoke(config, "--json").output) == json.loads((run.run_dir / "partition.json").read_text())


def test_picture_is_drawn_or_the_fault_told(config: Path, tmp_path: Path) -> None:
    assert invoke(config, "--picture", tmp_path / "dealt.png").exit_code == 0
    assert (tmp_path / "dealt.png").read_bytes().startswith(b"\x89PNG")
    nowhere = tmp_path / "no" / "dealt.png"
    result = invoke(config, "--picture", nowhere)
    assert result.exit_code == 2
    assert f"--picture: {str(nowhere)!r} cannot be written" in result.stderr


def test_many_clients_and_labels_are_cut_short(config: Path) -> None:
    sets = ["--set", "partition.kind=iid", "--set", "partition.clients=50", "--set", "partition.column="]
    output = invoke(config, *sets, "--set", "data.min_examples=1").output
    assert "and 10 more" in output


def test_bad_configuration_is_one_message(tmp_path: Path) -> None:
    result = invoke(tmp_path / "none.toml")
    assert result.exit_code == 2
    assert "Traceback" not in result.output
