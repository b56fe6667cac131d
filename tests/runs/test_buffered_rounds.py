"""Runs with buffered rounds: rounds where nobody is late, resumed bit for bit, and not held up by a slow client."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import rondo
from rondo.runs.watching.result import RunResult
from small_runs import copy_of, reviews, save_tiny_bert, settings, stopped, write_rows

BUFFERED = {"mode": "buffered", "buffer": 2}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("buffered")
    rows = write_rows(folder / "rows.csv", reviews(60))
    data = {"source": str(rows), "test_source": copy_of(rows), "validation_fraction": 0.0}
    return settings(save_tiny_bert(folder / "bert"), rounds=5, data=data, partition={"clients": 4})


def run(config: Mapping[str, Any], folder: Path, **changes: Any) -> RunResult:
    return rondo.run({**config, **changes}, run_dir=folder / "run", device="cpu")


def adapter(folder: Path) -> bytes:
    return (folder / "adapter" / "adapter_model.safetensors").read_bytes()


@pytest.mark.sweep(6)
@pytest.mark.parametrize(
    ("name", "magnitudes"),
    [("fedit", False), ("fedit", True), ("rolora", False), ("rolora", True), ("fedsa-lora", False), ("hetlora", False)],
)
def test_buffer_of_all_clients_is_a_round(name: str, magnitudes: bool, config: dict[str, Any], tmp_path: Path) -> None:
    """Where a step takes the upload of each client, the bits are those of rounds, whatever the clients' speeds."""
    buffered = {"mode": "buffered", "buffer": 4, "staleness": 3.0}
    keys = {"algorithm": {"name": name}, "adapter": {**config["adapter"], "use_dora": magnitudes}}
    one = run(config, tmp_path / "rounds", **keys)
    other = run(config, tmp_path / "buffered", **keys, clients=buffered, faults={"slow": ["client-1"]})
    assert adapter(one.run_dir) == adapter(other.run_dir)
    assert [r["loss"] for r in one.history] == [r["loss"] for r in other.history]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("magnitudes", [False, True])
def test_resumed_run_has_the_same_bits(magnitudes: bool, config: dict[str, Any], tmp_path: Path) -> None:
    layers = {**config["adapter"], "use_dora": magnitudes}
    late = {**config, "adapter": layers, "clients": BUFFERED, "faults": {"slow": ["client-2"], "crash": 0.2}}
    whole = rondo.run(late, run_dir=tmp_path / "whole", device="cpu")
    folder = stopped(late, tmp_path / "stopped", at=3)
    rondo.resume(folder, device="cpu")
    assert adapter(folder) == adapter(whole.run_dir)
    assert max(record["measures"]["staleness"] for record in whole.history) > 0


@pytest.mark.slow
def test_slow_client_holds_nobody_up(config: dict[str, Any], tmp_path: Path) -> None:
    """Its upload takes ten times as long, and fifteen steps pass before it counts."""
    seconds = {"slow": ["client-0"], "slow_factor": 10.0, "seconds_per_example": 1.0}
    result = run(config, tmp_path, clients=BUFFERED, faults=seconds, rounds=18)
    measures = [record["measures"] for record in result.history]
    assert measures[9]["simulated_seconds"] < 10 * 30  # two epochs of 15 rows, ten times
    assert measures[-1]["simulated_seconds"] >= 300
    assert max(m["staleness"] for m in measures) >= 7.5
    starting = [record["clients"] for record in result.history]
    assert (starting[0], max(starting[1:])) == (4, 3)  # the third starts while a buffer fills


@pytest.mark.slow
def test_clock_is_no_score(config: dict[str, Any], tmp_path: Path) -> None:
    """Without test rows methods are compared by the scores at the clients, and not by what they measure themselves."""
    data = {**config["data"], "test_source": None, "validation_fraction": 0.25}
    late = {**config, "rounds": 2, "clients": BUFFERED, "data": data}
    compared = rondo.compare(["fedit"], late, out=tmp_path / "out", device="cpu")
    assert {run["curve_of"] for run in compared.runs} == {"accuracy"}


@pytest.mark.parametrize(
    ("changes", "key", "reason"),
    [
        ({"clients": {"mode": "buffered"}}, "clients.buffer", 'mode = "buffered" needs it'),
        ({"clients": {"buffer": 2}}, "clients.buffer", 'only mode = "buffered" has one'),
        ({"clients": {**BUFFERED, "buffer": 9}}, "clients.buffer", "above the 4 clients that train at once"),
        ({"clients": {**BUFFERED, "deadline": 3.0}}, "clients.deadline", "no upload comes too late"),
        ({"clients": BUFFERED, "compression": {"kind": "rounding"}}, "clients.mode", "packed uploads"),
        ({"clients": BUFFERED, "algorithm": {"name": "flora"}}, "clients.mode", "works on single uploads"),
        ({"clients": BUFFERED, "algorithm": {"name": "fedloru"}}, "clients.mode", "starts factors anew"),
        ({"async": True}, "async", 'here it is clients.mode = "buffered"'),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    changes: dict[str, Any], key: str, reason: str, config: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(rondo.ConfigError) as error:
        run(config, tmp_path, **changes)
    assert [p.message for p in error.value.problems if p.path == key and reason in p.message]
