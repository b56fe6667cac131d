"""``rondo init --task KIND``: each kind's file runs as it is. Models of a hub are tiny ones in their place."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import rondo
from choice_rows import save_tiny_llama
from pair_rows import save_tiny
from rondo.cli import app
from rondo.config import load
from rondo.config import task_kinds as tasks
from rondo.data.demo.starters import KINDS

QUICK = ["rounds=1", "data.max_train_rows=24", "data.max_test_rows=8", "train.batch_size=8", "data.min_examples=1"]


def test_every_kind_has_one() -> None:
    assert set(KINDS) == set(tasks.TABLE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_file_of_a_kind_runs(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["init", "my.toml", "--task", kind])
    assert said.exit_code == 0, said.output
    config, sets = load("my.toml"), QUICK
    if ":" not in config.model.name:
        folder = tmp_path / "model"
        made = save_tiny("T5", folder) if kind == "seq2seq-lm" else save_tiny_llama(folder)
        sets = [*QUICK, f"model.name={made}"]
    result = rondo.run(load("my.toml", sets if kind != "linear" else ["rounds=1"]), run_dir="run", device="cpu")
    assert (result.run_dir / "adapter").is_dir()


def test_what_there_is_no_file_of_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["init", "--task", "embeddings"])
    assert said.exit_code == 2
    assert "--task: should be one of 'sequence-classification', " in said.output
    assert "got 'embeddings'; did you mean 'embedding'?" in said.output
    said = CliRunner().invoke(app, ["init", "--task", "embedding", "--paper", "rolora/sst2"])
    assert said.exit_code == 2
    assert "a paper has its own: leave one out" in said.output
    Path("rondo.rows.jsonl").write_text("{}\n")
    said = CliRunner().invoke(app, ["init", "--task", "embedding"])
    assert (said.exit_code, Path("rondo.rows.jsonl").read_text()) == (2, "{}\n")
    assert not Path("rondo.toml").exists()
