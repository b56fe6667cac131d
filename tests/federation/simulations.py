"""The simulation that a federation equals, bit for bit: the same adapter and the same records."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

import rondo
from outcomes import adapter
from records import timeless
from rondo.algorithm import ClientFailed
from rondo.engine.simulation import Simulation
from rondo.engine.transport import Turnout


def simulated(
    folder: Path, config: dict[str, Any], run_dir: Path, away: Callable[[int], Collection[str]] = lambda attempt: ()
) -> rondo.RunResult:
    """The run of ``config`` over the rows of all sites, without the clients that are ``away`` in an attempt."""
    there = Simulation.expected

    def expected(self: Simulation, clients: Any, round: Any, failed: Any) -> Any:
        asked = there(self, clients, round, failed).asked
        gone = [c.id for c in asked if c.id in away(round.attempt)]
        lost = {name: ClientFailed(name, "absent", "it is not connected") for name in gone}
        return Turnout(tuple(c for c in asked if c.id not in gone), lost)

    data = {**config["data"], "clients_from": str(folder / "data" / "all")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulation, "expected", expected)
        return rondo.run({**config, "data": data}, run_dir=run_dir, device="cpu")


def comparable(record: dict[str, Any]) -> dict[str, Any]:
    """The clients of a simulation alone say how much they computed, and it hides nothing from its own machine."""
    simulated = "; against the machine of this simulation: nothing"
    guarantee = (record.get("guarantee") or "").removesuffix(simulated)
    return timeless(record) | {"client_flops": None, "guarantee": guarantee}


def assert_equal(one: rondo.RunResult, other: rondo.RunResult, **unlike: Any) -> None:
    """Equal adapters, bit for bit, and equal records but for the time and the keys that are ``unlike``."""
    assert adapter(one.run_dir) == adapter(other.run_dir)
    assert [comparable(r) | unlike for r in one.history] == [comparable(r) | unlike for r in other.history]
