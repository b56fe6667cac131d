"""Runs whose clients take private steps: every kind of method, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import rondo
from kinds_of_runs import make_sources
from methods import KINDS, every_method
from records import timeless
from rondo.algorithm import Client, Upload
from rondo.algorithms.compatible import refused
from rondo.algorithms.table import TABLE
from rondo.config import load
from rondo.engine.client.job import decode_answers, encode_answers
from rondo.engine.server.ledger import Ledger
from rondo.engine.server.rounds import Server
from rondo.engine.transport import Answer
from rondo.errors import ConfigError, RunStopped
from rondo.federation.server import remote_run
from rondo.models.loading.peft import read_tensors
from rondo.privacy.accountant import epsilon
from rondo.runs import runner
from rondo.runs.runner import RunResult
from small_runs import settings

pytest.importorskip("dp_accounting")

PRIVACY = {"adversary": "server", "unit": "example", "clip": 0.5, "noise": 0.5, "delta": 1e-5, "debug_seed": 1}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sources(tmp_path_factory.mktemp("sources"))


def configured(sources: Path, name: str = "fedit", **changes: Any) -> dict[str, Any]:
    """Two rounds of two clients; SGD, so that a difference of bits does not grow into one of signs."""
    sections: dict[str, Any] = {
        "algorithm": {"name": name, **({"option": "II"} if name == "scaffold" else {})},
        "data": {"source": str(sources / "rows.csv"), "test_split": "", "validation_fraction": 0.25},
        "partition": {"clients": 2},
        "clients": {"weighting": "uniform"},
        "train": {"optimizer": "sgd", "lr": 0.05, "batch_size": 6, "local_epochs": 1, "max_grad_norm": 0.0},
        "evaluation": {"diagnostics_every": 0},
        "privacy": PRIVACY,
    }
    for section, keys in changes.items():
        sections[section] = {**sections.get(section, {}), **keys} if isinstance(keys, dict) else keys
    return settings(sources / "bert", **sections)


def run(config: dict[str, Any], folder: Path) -> RunResult:
    return rondo.run(config, run_dir=folder, device="cpu")


NAMES = [n for n in TABLE if n == "scaffold" or "example DP" not in refused(TABLE[n].traits, linear=TABLE[n].linear)]


@pytest.mark.parametrize("name", every_method(NAMES, KINDS))
def test_every_method_runs_and_a_row_does_not_see_the_others(name: str, sources: Path, tmp_path: Path) -> None:
    """A pass of one row leaves nothing that an objective could mix."""
    together = run(configured(sources, name), tmp_path / "together")
    assert [(r["skipped"], r["failed"], r["loss"]) for r in together.history] == [(None, [], None)] * 2
    alone = run(configured(sources, name, train={"micro_batch": 1}), tmp_path / "alone")
    expected = read_tensors(alone.run_dir / "adapter")
    for key, tensor in read_tensors(together.run_dir / "adapter").items():
        torch.testing.assert_close(tensor, expected[key], rtol=1e-3, atol=1e-5)


def test_debug_seed_repeats_a_run_and_no_seed_does_not(sources: Path, tmp_path: Path) -> None:
    results = [run(configured(sources), tmp_path / n) for n in ("one", "two")]
    results += [run(configured(sources, privacy={"debug_seed": None}), tmp_path / n) for n in ("three", "four")]
    first, same, third, other = ((r.run_dir / "adapter" / "adapter_model.safetensors").read_bytes() for r in results)
    assert first == same
    assert third != other


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("privacy", "budget", 3.0),
        ("privacy", "group", "who"),
        ("privacy", "clip", "adaptive"),
        ("train", "max_grad_norm", 1.0),
        ("train", "packing", True),
        ("train", "length_grouping", True),
        ("clients", "weighting", "examples"),
        ("evaluation", "local_only", True),
        ("evaluation", "fine_tune_epochs", 1),
    ],
)
def test_what_breaks_the_guarantee_is_refused(
    section: str, key: str, value: Any, sources: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"{section}\.{key}: ") as caught:
        run(configured(sources, **{section: {key: value}}), tmp_path / "run")
    assert len(caught.value.problems) == 1


def test_records_and_summary_have_the_epsilon_of_all_steps_so_far(sources: Path, tmp_path: Path) -> None:
    """Ditto has two fits per round: of the shared model, and of the client's own."""
    config = configured(sources, "ditto", clients={"per_round": 1}, rounds=3)
    result = run(config, tmp_path / "run")
    rows = {c: n["train"] for c, n in partition(result).items()}
    taken = dict.fromkeys(rows, 0)
    for record in result.history:
        (client,) = record["client_epsilon"]
        taken[client] += 2 * -(-rows[client] // 6)
        spent = {c: epsilon(0.5, min(1.0, 6 / rows[c]), n, 1e-5) for c, n in taken.items()}
        assert record["client_epsilon"] == {client: spent[client]}
        assert record["epsilon"] == max(spent.values()) > 1
        assert record["epsilon_valid"] is False  # a debug seed is set
    summary = json.loads((result.run_dir / "summary.json").read_text())
    assert (summary["privacy"]["epsilon"], summary["privacy"]["epsilon_valid"]) == (
        result.history[-1]["epsilon"],
        False,
    )


def partition(result: RunResult) -> dict[str, Any]:
    clients: dict[str, Any] = json.loads((result.run_dir / "partition.json").read_text())["clients"]
    return clients


def test_without_noise_there_is_no_epsilon(sources: Path, tmp_path: Path) -> None:
    result = run(configured(sources, privacy={"noise": 0.0, "debug_seed": None}), tmp_path / "run")
    assert [(r["epsilon"], r["epsilon_valid"]) for r in result.history] == [(None, True)] * 2


def test_run_without_privacy_tells_no_epsilon(sources: Path, tmp_path: Path) -> None:
    config = configured(sources)
    del config["privacy"]
    assert "epsilon" not in run(config, tmp_path / "run").history[-1]


def test_stopped_run_resumes_to_the_same_bits_and_the_same_epsilon(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(sources, "fedsa-lora", clients={"per_round": 1}, rounds=3)
    whole = run(config, tmp_path / "whole")
    original = Server.run_round

    def stopping(self: Server, attempt: int, *args: Any) -> dict[str, Any]:
        if attempt == 2:
            raise RunStopped("stopped here")
        return original(self, attempt, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Server, "run_round", stopping)
        with pytest.raises(RunStopped):
            run(config, tmp_path / "stopped")
    resumed = runner.resume(tmp_path / "stopped", device="cpu")
    assert [timeless(r) for r in resumed.history] == [timeless(r) for r in whole.history]
    first, second = ((r.run_dir / "adapter" / "adapter_model.safetensors").read_bytes() for r in (whole, resumed))
    assert first == second


def test_answers_of_workers_count_their_steps() -> None:
    answer = Answer(Client("a", 4), Upload(Client("a", 4), {"m.A": torch.ones(1)}, 1.0), work=((3, 18), (4, 24)))
    assert [a.work for a in decode_answers(encode_answers([answer]))] == [((3, 18), (4, 24))]


def test_ledger_keeps_the_steps() -> None:
    ledger = Ledger(private_steps={"a": 7})
    assert Ledger.from_json(ledger.to_json()).private_steps == {"a": 7}
    assert b"private_steps" not in Ledger().to_json()


def test_federation_refuses_it(sources: Path) -> None:
    config = load(configured(sources))
    with pytest.raises(ConfigError) as caught:
        remote_run.check(config)
    assert [p.message for p in caught.value.problems if p.path == "privacy.unit"] == [
        "no site's contract decides on it yet: remove it"
    ]
