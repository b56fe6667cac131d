"""Runs whose uploads are compressed: their bytes, their configuration, and everything beside it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import rondo
from kinds_of_runs import configured, outcome
from methods import every_method
from outcomes import told
from rondo.algorithms.trial import trial_upload
from rondo.config import load
from rondo.runs.assembling.assemble import assemble
from rondo.runs.estimate import estimate

pytestmark = pytest.mark.usefixtures("no_pictures")


KINDS_OF_RUNS = ("shared factors", "whole tensors", "states on both sides", "a linear problem")


def run_of(sources: Path, kind: str = "shared factors", **changes: Any) -> dict[str, Any]:
    config, _ = configured(kind, sources, **changes)
    return config


def up(result: rondo.RunResult) -> list[int]:
    return [record["bytes_up"] / record["clients"] for record in result.history]


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("compression", "size"),
    [
        pytest.param({"kind": "rounding"}, lambda n: n + 4 * math.ceil(n / 256), marks=pytest.mark.slow),
        ({"kind": "rounding", "bits": 4}, lambda n: math.ceil(n / 2) + 4 * math.ceil(n / 256)),
        pytest.param({"kind": "top-k"}, lambda n: 6 * math.ceil(0.1 * n), marks=pytest.mark.slow),
        ({"kind": "top-k", "keep": 0.01}, lambda n: 6 * math.ceil(0.01 * n)),
    ],
)
def test_record_and_dry_run_have_the_bytes_that_travel(
    sources: Path, tmp_path: Path, compression: dict[str, Any], size: Any
) -> None:
    plain = load(run_of(sources))
    sizes = _sizes(sources)
    result = rondo.run(run_of(sources, compression=compression), run_dir=tmp_path / "run", device="cpu")
    assert up(result) == [sum(map(size, sizes[index % 2])) for index in range(3)]
    assert (
        estimate(run_of(sources, compression=compression), "cpu").up
        == sum(sum(map(size, sizes[index])) for index in range(2)) / 2
    )
    whole = rondo.run(plain, run_dir=tmp_path / "plain", device="cpu")
    assert [r["bytes_down"] for r in whole.history] == [r["bytes_down"] for r in result.history]
    assert result.summary["bytes"]["up"] == sum(r["bytes_up"] for r in result.history)


def _sizes(sources: Path) -> list[list[int]]:
    """Numbers of each tensor in RoLoRA's uploads of an even and of an odd round."""
    assembly = assemble(load(run_of(sources)), "cpu")
    state, client = assembly.first_state(), assembly.population.clients[0]
    sizes = []
    for index in range(2):
        shared = assembly.algorithm.broadcast(state, client, assembly.round(index))
        upload = trial_upload(assembly.algorithm, shared, client, assembly.round(index))
        sizes.append([t.numel() for t in upload.params.values()])
    return sizes


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"compression": {"bits": 4}}, "compression.bits", "only kind = 'rounding' uses it"),
        ({"compression": {"kind": "top-k", "bits": 4}}, "compression.bits", "only kind = 'rounding' uses it"),
        ({"compression": {"kind": "rounding", "keep": 0.1}}, "compression.keep", "only kind = 'top-k' uses it"),
        ({"compression": {"kind": "top-k", "keep": 0.6}}, "compression.keep", "should be less than or equal to 0.5"),
        ({"compression": {"kind": "rounding", "bits": 2}}, "compression.bits", ""),
        (
            {"compression": {"kind": "rounding"}, "admission": {"max_norm": 1.0, "clip": True}},
            "admission.clip",
            "a packed upload has no numbers that could be scaled",
        ),
        (
            {
                "compression": {"kind": "rounding"},
                "privacy": {"adversary": "server", "secure_aggregation": True, "clip": 10.0},
                "evaluation": {"diagnostics_every": 0},
            },
            "compression.kind",
            "masked numbers are those of one ring for all clients",
        ),
        (
            {"compression": {"kind": "top-k"}, "algorithm": {"name": "florg"}},
            "compression.kind",
            "florg: its server puts what it gets into other coordinates, where numbers that a client held back",
        ),
        (
            {"compression": {"kind": "top-k"}, "algorithm": {"name": "fedloru"}},
            "compression.kind",
            "fedloru: its server starts factors anew, and to them numbers that a client held back",
        ),
    ],
)
def test_option_that_does_not_go_is_refused(sources: Path, changes: dict[str, Any], key: str, message: str) -> None:
    ((path, said),) = told(lambda: assemble(load(run_of(sources, **changes)), "cpu"))
    assert (path, message in said) == (key, True), said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rounding", "top-k"])
@pytest.mark.parametrize(
    "changes",
    [
        {"server": {"optimizer": "adam"}},
        {"robust": {"rule": "multi-krum", "byzantine": 1}, "clients": {"min_clients": 3}},
        {"robust": {"rule": "median", "byzantine": 1}, "clients": {"min_clients": 3}},
        {"model": {"head": "local"}, "evaluation": {"clients_every": 1}},
        {"evaluation": {"clients_every": 1, "local_only": True, "fine_tune_epochs": 1, "diagnostics_every": 1}},
        {"algorithm": {"name": "fedit"}, "clients": {"ranks": [1, 2, 1, 2]}},
        {"algorithm": {"name": "fedit"}, "clients": {"bytes_budget": 700}},
        {"admission": {"max_norm": 100.0}},
        {"faults": {"corrupt_upload": 0.3, "duplicate": 0.3, "nonfinite_loss": 0.2}, "simulation": {"cohort": 2}},
        {
            "privacy": {
                "adversary": "reader",
                "unit": "client",
                "clip": 1.0,
                "noise": 1.0,
                "delta": 1e-5,
                "debug_seed": 0,
            },
            "clients": {"sampling": "full", "weighting": "uniform"},
            "task": {"labels": ["neg", "pos"]},
            "evaluation": {"diagnostics_every": 0},
        },
    ],
)
def test_run_beside_other_options(sources: Path, tmp_path: Path, kind: str, changes: dict[str, Any]) -> None:
    config = run_of(sources, compression={"kind": kind}, **changes)
    if "clients" in changes and "ranks" not in changes["clients"] and "bytes_budget" not in changes["clients"]:
        config["clients"].pop("per_round", None)
    result = rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    assert [record["skipped"] for record in result.history] == [None] * len(result.history)
    reasons = {record["diagnostics"]["reason"] for record in result.history if record.get("diagnostics")}
    assert reasons <= {None}


def test_budget_of_bytes_is_that_of_packed_uploads(sources: Path, tmp_path: Path) -> None:
    """Four bits a number leave room for a higher rank."""

    def ranks(compression: dict[str, Any]) -> set[int | None]:
        changes = {"algorithm": {"name": "fedit"}, "adapter": {"r": 8}, "clients": {"bytes_budget": 1200}}
        config = run_of(sources, compression=compression, **changes)
        return {client.rank for client in assemble(load(config), "cpu").population.clients}

    (plain,), (packed,) = ranks({}), ranks({"kind": "rounding", "bits": 4})
    assert plain is not None
    assert packed is not None
    assert packed > 4 * plain


@pytest.mark.sweep(2)
@pytest.mark.parametrize("kind", every_method(KINDS_OF_RUNS, default=KINDS_OF_RUNS[:1]))
@pytest.mark.parametrize("compression", [{"kind": "rounding", "bits": 4}, {"kind": "top-k"}])
def test_same_run_has_the_same_bits(sources: Path, tmp_path: Path, kind: str, compression: dict[str, Any]) -> None:
    config, rows = configured(kind, sources, compression=compression)
    for name in ("one", "other"):
        rondo.run(config, run_dir=tmp_path / name, device="cpu", **rows)
    assert outcome(tmp_path / "one") == outcome(tmp_path / "other")
