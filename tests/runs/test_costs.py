"""Costs of a run in its records, its summary and a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rondo
from kinds_of_runs import configured
from rondo.records.summary import costs


def ran(kind: str, sources: Path, folder: Path, **changes: Any) -> rondo.RunResult:
    config, given = configured(kind, sources, **changes)
    return rondo.run(config, run_dir=folder, device="cpu", **given)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("kind", ["shared factors", "whole tensors", "a linear problem"])
def test_records_and_summary_have_costs(kind: str, sources: Path, tmp_path: Path) -> None:
    """A least-squares solution has no count of operations."""
    result = ran(kind, sources, tmp_path / "run")
    for record in result.history:
        assert 0 < record["server_seconds"] < record["train_seconds"]
        assert 0 < record["server_memory_bytes"] < record["process_memory_bytes"]
        assert record["device_memory_bytes"] is None
        assert (record["client_flops"] or 0) > 0 or kind == "a linear problem"
    assert result.summary["costs"] == costs(result.history)
    flops = [r["client_flops"] for r in result.history]
    per_client = None if None in flops else sum(flops) / 9
    assert result.summary["costs"]["flops_per_client_round"] == per_client
    assert (per_client is None) == (kind == "a linear problem")


@pytest.mark.slow
def test_shortcuts_do_not_lower_the_count(sources: Path, tmp_path: Path) -> None:
    """A run with kept states, rows laid end to end and the last layer cut to its first token counts as a plain one, and
    so does a run of cohorts."""
    flops = []
    for number, (on, cohort) in enumerate([(True, 1), (False, 1), (True, 3)]):
        train = {"local_epochs": 1, "batch_size": 4, "packing": on}
        simulation = {"cohort": cohort, "reuse_prefix": on}
        adapter = {"r": 2, "target_modules": ["query"], "layers_to_transform": [1]}
        changes = {"train": train, "simulation": simulation, "adapter": adapter}
        result = ran("shared factors", sources, tmp_path / str(number), **changes)
        flops.append([record["client_flops"] for record in result.history])
    assert flops[0] == flops[1] == flops[2]
    assert min(flops[0]) > 0


def record(**changes: Any) -> dict[str, Any]:
    base = {"clients": 2, "skipped": None, "client_flops": 100, "server_seconds": 1.0, "server_memory_bytes": 10}
    return {**base, "process_memory_bytes": 1000, "device_memory_bytes": None, **changes}


def test_costs_over_rounds() -> None:
    """Skipped rounds cost the server nothing that counts, and their clients what they computed."""
    history = [
        record(),
        record(clients=4, client_flops=500, server_seconds=2.0, server_memory_bytes=30, process_memory_bytes=1500),
        record(clients=0, client_flops=0, skipped="too few", server_seconds=50.0, server_memory_bytes=0),
    ]
    assert costs(history) == {
        "server_seconds_per_round": 1.5,
        "flops_per_client_round": 100.0,
        "server_memory_bytes": 30,
        "process_memory_bytes": 1500,
        "device_memory_bytes": None,
    }


def test_costs_of_records_without_them() -> None:
    """A federation's clients do not count, and a run may go on that began before records had costs."""
    assert set(costs([{"clients": 2, "skipped": None}]).values()) == {None}
    assert costs([record(client_flops=None), record()])["flops_per_client_round"] is None
    assert set(costs([]).values()) == {None}


@pytest.mark.slow
def test_comparison_has_costs(sources: Path, tmp_path: Path) -> None:
    config, given = configured("shared factors", sources)
    comparison = rondo.compare(["fedit", "rolora"], config, out=tmp_path, seeds=[0], device="cpu", **given)
    both, turns = (comparison.algorithms[name]["flops_per_client_round"]["mean"] for name in ("fedit", "rolora"))
    assert 0 < turns < both
    assert comparison.algorithms["fedit"]["server_seconds_per_round"]["mean"] > 0
