"""The expected cost of a run beside its real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

import rondo
from kinds_of_runs import KINDS, configured
from rondo.cli import app
from rondo.runs import estimate as module
from rondo.runs.estimate import estimate


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shared factors", "personal factors", "states on both sides"])
def test_bytes_are_those_of_the_run(kind: str, sources: Path, tmp_path: Path) -> None:
    config, _ = configured(kind, sources, rounds=2, clients={"per_round": 3, "sampling": "uniform"})
    expected = estimate(config, device="cpu")
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    traffic = result.summary["bytes"]
    assert expected.up == traffic["up_per_client_round"]
    assert (expected.rounds, expected.clients, expected.per_round) == (2, 4, 3)
    assert expected.down == result.history[1]["bytes_down"] / 3


def test_seconds_are_extrapolated_over_the_steps(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """11 rows of a client in batches of 4 and two epochs: 6 steps; the second step took a second."""
    config, _ = configured("shared factors", sources, train={"local_epochs": 2, "batch_size": 4})
    seconds = iter([9.0, 3.0, 9.0, 4.0])
    tried = module._tried

    def timed(*arguments: Any) -> list[Any]:
        return [{**record, "train_seconds": next(seconds)} for record in tried(*arguments)]

    monkeypatch.setattr(module, "_tried", timed)
    expected = estimate(config, device="cpu")
    assert expected.steps == 6
    assert expected.seconds_per_round == 3 + 5


def test_nothing_is_written_and_the_lines_have_every_number(sources: Path, tmp_path: Path) -> None:
    config, _ = configured("shared factors", sources)
    path = tmp_path / "run.toml"
    path.write_text(tomli_w.dumps(config), encoding="utf-8")
    result = CliRunner().invoke(app, ["run", str(path), "--dry-run", "--run-dir", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert [p.name for p in tmp_path.iterdir()] == ["run.toml"]
    lines = result.output.splitlines()
    assert lines[0] == "3 rounds of 3 of 4 clients"
    assert [line.split(":")[0] for line in lines[1:]] == [
        "up, per client and round",
        "bytes of the run, both ways",
        "training",
        "activations of a client's largest step",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_estimated(kind: str, sources: Path) -> None:
    config, rows = configured(kind, sources)
    if not rows:
        assert estimate(config, device="cpu").up > 0
