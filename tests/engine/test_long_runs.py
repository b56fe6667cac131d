"""A run's state, ledger, checkpoint and traffic do not grow with its rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rondo.engine.scoring import NEWCOMER
from rondo.engine.server.ledger import Ledger
from rondo.engine.wire import serialization
from rondo.records.durable import Position
from rondo.runs.storage import checkpoint
from rondo.runs.storage.checkpoint import Checkpoint, Kept
from tiny_federation import NAMES, config, make, population

FIELDS: dict[str, dict[str, Any]] = {name: {"tau": 1} for name in ("fedloru", "pfedloru", "mfedloru")}
"""Merges every round, the fastest growth of the base's change that these algorithms allow."""
GROWING = ("flora", "fedex-lora", "fedloru")
SIZES = {f"client-{k}": 4 for k in range(6)}


def sizes(name: str, rounds: int, folder: Path) -> list[dict[str, int]]:
    """Sizes after every round in which two of six clients take part, with a checkpoint each."""
    run = config(rounds=rounds, clients={"per_round": 2}, train={"batch_size": 4})
    sim = make(name, "local", people=population(SIZES), run=run, **FIELDS.get(name, {}))
    kept = Kept(folder)
    sim.locals = kept  # type: ignore[assignment]
    readings = []
    for index in range(rounds):
        newcomer, _ = Ledger().send("new", sim.algorithm.broadcast(sim.state, NEWCOMER, sim.round(index)))
        down = sim.run_round(index)["bytes_down"]
        assert down <= 2 * newcomer  # a returning client is never sent more than a new one
        checkpoint.save(folder, Checkpoint(index + 1, sim.aggregated, sim.state, kept, sim.ledger, Position(0, ""), {}))
        versions = sum(map(len, sim.ledger.held.values()))
        assert len(sim.ledger.to_json()) < 128 * versions  # less where clients hold the same
        files = [path for path in folder.rglob("*") if path.is_file()]
        readings.append(
            {
                "state": len(serialization.pack(sim.state)),
                "versions": versions,
                "checkpoint": sum(path.stat().st_size for path in files),
                "files": len(files),
                "newcomer": newcomer,
            }
        )
    return readings


def assert_level(readings: list[dict[str, int]], warm_up: int) -> None:
    """No reading of the second half after ``warm_up`` rounds exceeds the first half's largest by more than 1 %, which
    the digits of the round's number may take."""
    half = warm_up + (len(readings) - warm_up) // 2
    for key in readings[0]:
        first, second = (max(r[key] for r in part) for part in (readings[warm_up:half], readings[half:]))
        assert second <= 1.01 * first, (key, first, second)


@pytest.mark.parametrize("name", GROWING)
def test_base_change_does_not_grow_a_run(name: str, tmp_path: Path) -> None:
    assert_level(sizes(name, 18, tmp_path), 8)


@pytest.mark.parametrize("name", GROWING)
def test_resumed_base_change_goes_on_with_the_same_bits(name: str) -> None:
    """Taken up while the change is a stack, and while it is dense."""
    people, run, fields = population(SIZES), config(rounds=8, clients={"per_round": 2}), FIELDS.get(name, {})
    whole = make(name, people=people, run=run, **fields)
    kinds = set()
    for index in range(8):
        again = make(name, people=people, run=run, **fields)
        again.state = serialization.unpack(serialization.pack(whole.state), again.state)
        again.ledger, again.aggregated = Ledger.from_json(whole.ledger.to_json()), whole.aggregated
        records = [sim.run_round(index) for sim in (whole, again)]
        assert serialization.same(whole.state, again.state)
        assert whole.ledger.to_json() == again.ledger.to_json()
        assert records[0]["bytes_down"] == records[1]["bytes_down"]
        kinds |= {change.dense is None for change in whole.state.base.values()}
    assert kinds == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_no_algorithm_grows_a_run(name: str, tmp_path: Path) -> None:
    assert_level(sizes(name, 80, tmp_path), 20)
