"""Federations whose sites compress their uploads: the simulation's bits, also after a site was killed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from parties import LABELS, Parties, configuration
from simulations import assert_equal, simulated

import rondo
from rondo.federation.site.contract.terms import kind_of
from small_runs import Watch


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


def assert_simulated(result: rondo.RunResult, folder: Path, config: dict[str, Any], run_dir: Path) -> None:
    """Without scores: the last bits of a loss on the test set are not those of every process."""
    assert_equal(result, simulated(folder, config, run_dir), scores=None)
    assert [record["skipped"] for record in result.history] == [None] * 4


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
    parties = Parties(folder, state=tmp_path)
    assert_simulated(parties.run(config, tmp_path / "run"), folder, config, tmp_path / "simulation")
    assert not parties.errors


@pytest.mark.slow
def test_site_that_is_started_anew_has_what_it_held_back(folder: Path, tmp_path: Path) -> None:
    """Its disk alone has it: another process would start with zeros, and give other bits."""
    config = run_of(folder, {"kind": "top-k"})
    parties = Parties(folder, state=tmp_path)

    def restart(index: int) -> None:
        for site in ("north", "south"):
            parties.stop(site)
            parties.start(site)

    result = parties.run(config, tmp_path / "run", observer=Watch(restart), patience=60.0)
    assert_simulated(result, folder, config, tmp_path / "simulation")


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
