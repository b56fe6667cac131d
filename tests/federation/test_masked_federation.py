"""A federation that masks its uploads equals its simulation, bit for bit, and its server sees sums alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from parties import Parties, configuration
from simulations import assert_equal, simulated

MASKED = {"adversary": "server", "secure_aggregation": True, "clip": 10.0}


SKETCHED = ("fedex-lora", "flexlora")
"""Send sketches of their products, without which their servers work on single uploads."""


def masked(folder: Path, name: str, **sections: Any) -> dict[str, Any]:
    """Three rounds of three clients at two sites."""
    plain = {"optimizer": "sgd", "max_grad_norm": 0.0} if name == "scaffold" else {}
    train = {"local_epochs": 1, "batch_size": 4, **plain}
    fields = {"sketch": 4} if name in SKETCHED else {}
    run = {"rounds": 3, "algorithm": {"name": name, **fields}, "privacy": MASKED, "train": train}
    return configuration(folder, **{**run, "task": {"labels": ["neg", "pos"]}, **sections})


@pytest.mark.parametrize(
    "name",
    [
        "rolora",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("florg", "fedsvd", "scaffold", "lora-a2", *SKETCHED)),
    ],
)
def test_masked_federation_equals_the_simulation(folder: Path, tmp_path: Path, name: str) -> None:
    run = masked(folder, name)
    expected = simulated(folder, run, tmp_path / "simulation")
    parties = Parties(folder, state=tmp_path)
    result = parties.run(run, tmp_path / "run")
    assert_equal(result, expected, bytes_up=0)
    for one, other in zip(result.history, expected.history, strict=True):
        # Two of the clients are at one site, which sends one vector.
        assert one["bytes_up"] * 3 == other["bytes_up"] * 2
        assert one["guarantee"] == "masked sums, against the server: it sees sums alone"
        assert other["guarantee"] == f"{one['guarantee']}; against the machine of this simulation: nothing"
    assert not parties.errors
