"""Federations whose sites compress their uploads: the simulation's bits, also after a site was killed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from records import timeless

pytest.importorskip("flwr")

from parties import LABELS, Parties, configuration

import rondo
from rondo.federation.site.contract.terms import kind_of
from rondo.runs.watching.progress import Quiet


def run_of(folder: Path, compression: Mapping[str, Any], name: str = "rolora", **changes: Any) -> dict[str, Any]:
    """Four rounds with two of three clients: some client waits with what it held back."""
    sections: dict[str, Any] = {
        "rounds": 4,
        "algorithm": {"name": name},
        "clients": {"per_round": 2},
        "train": {"local_epochs": 1, "batch_size": 4},
        "task": LABELS,
        "compression": compression,
    }
    return configuration(folder, **{**sections, **changes})


def simulated(folder: Path, tmp_path: Path, config: dict[str, Any]) -> rondo.RunResult:
    data = {**config["data"], "clients_from": str(folder / "data" / "all")}
    return rondo.run({**config, "data": data}, run_dir=tmp_path / "simulation", device="cpu")


def assert_equal(one: rondo.RunResult, other: rondo.RunResult) -> None:
    for result in (one, other):
        assert [record["skipped"] for record in result.history] == [None] * 4
    assert numbers(one) == numbers(other)
    assert records(one) == records(other)


def numbers(result: rondo.RunResult) -> bytes:
    return (result.run_dir / "adapter" / "adapter_model.safetensors").read_bytes()


def records(result: rondo.RunResult) -> list[dict[str, Any]]:
    """Without scores: the last bits of a loss on the test set are not those of every process."""
    return [timeless(record) | {"client_flops": None, "scores": None} for record in result.history]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "compression"),
    [
        ("fedit", {"kind": "rounding", "bits": 4}),
        ("florg", {"kind": "rounding"}),
        ("rolora", {"kind": "rounding", "bits": 4}),
        ("rolora", {"kind": "top-k"}),
        ("scaffold", {"kind": "top-k", "keep": 0.3}),
    ],
)
def test_federation_equals_the_simulation(
    folder: Path, tmp_path: Path, name: str, compression: Mapping[str, Any]
) -> None:
    changes = {"train": {"local_epochs": 1, "batch_size": 4, "optimizer": "sgd"}} if name == "scaffold" else {}
    config = run_of(folder, compression, name, **changes)
    expected = simulated(folder, tmp_path, config)
    parties = Parties(folder, state=tmp_path)
    assert_equal(parties.run(config, tmp_path / "run"), expected)
    assert not parties.errors


@pytest.mark.slow
def test_site_that_is_started_anew_has_what_it_held_back(folder: Path, tmp_path: Path) -> None:
    """Its disk alone has it: another process would start with zeros, and give other bits."""
    config = run_of(folder, {"kind": "top-k"})
    expected = simulated(folder, tmp_path, config)
    parties = Parties(folder, state=tmp_path)

    class Restart(Quiet):
        def round_started(self, index: int, clients: int) -> None:
            for site in ("north", "south"):
                parties.stop(site)
                parties.start(site)

    result = parties.run(config, tmp_path / "run", observer=Restart(), patience=60.0)
    assert_equal(result, expected)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("scales:bert.query.A", "factors"),
        ("places:bert.query.B", "factors"),
        ("scales:head:classifier.weight", "head"),
        ("places:bert.embeddings.weight", "whole"),
        ("scales:aux:bert.query.A", "factors"),
        ("scales:aux:head:classifier.weight", "head"),
    ],
)
def test_contract_takes_scales_and_places_for_their_tensors(name: str, kind: str) -> None:
    assert kind_of(name) == kind
