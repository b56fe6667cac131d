"""A federation over Flower and TLS equals its simulation, bit for bit: the same adapter and the same records."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from parties import SITES, Parties, configuration, until
from simulations import assert_equal, simulated
from torch import Tensor

from outcomes import adapter
from rondo import algorithms
from rondo.algorithm import Shared
from rondo.data.demo.digits import digits
from rondo.engine.wire import parcel
from rondo.federation.identity import keys
from rondo.federation.site import seat
from rondo.federation.site.disk import start_over
from rondo.params import num_bytes
from small_runs import Watch, dying
from tiny_federation import stateful

config = partial(configuration, evaluation={"clients_every": 1})


LINEAR = {name for name, entry in algorithms.TABLE.items() if entry.traits.least_squares}
"""Methods for rows that a simulation draws."""
ORDINARY = ("rolora", "fedrep", "florg")


def of_method(folder: Path, name: str) -> dict[str, Any]:
    clients = {"per_round": 2, "ranks": [1, 2, 2] if name == "hetlora" else None}
    evaluation = {"clients_every": 1, "diagnostics_every": 2}
    return config(folder, **{**stateful(name), "clients": clients, "evaluation": evaluation})


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ORDINARY else pytest.mark.slow)
        for name in algorithms.names()
        if name not in LINEAR
    ],
)
def test_federation_equals_the_simulation(folder: Path, tmp_path: Path, name: str) -> None:
    run = of_method(folder, name)
    expected = simulated(folder, run, tmp_path / "simulation")
    parties = Parties(folder, state=tmp_path)
    assert_equal(parties.run(run, tmp_path / "run"), expected)
    assert not parties.errors


@pytest.mark.slow
def test_site_that_is_started_anew_in_the_middle(folder: Path, tmp_path: Path) -> None:
    """It stops while it is asked, and comes back with its disk."""
    run = of_method(folder, "fedsa-lora")
    expected = simulated(folder, run, tmp_path / "simulation")
    parties = Parties(folder, state=tmp_path)

    def restart(index: int) -> None:
        """All clients that are connected will be asked, and then this one is not."""
        parties.stop("south")
        parties.start("south")

    result = parties.run(run, tmp_path / "run", observer=Watch(restart), patience=60.0)
    assert_equal(result, expected)


@pytest.mark.slow
def test_site_with_an_empty_disk(folder: Path, tmp_path: Path) -> None:
    """It has lost what it was sent, and makes A again, once its owner has said that it begins again. B is the round's,
    and sent in any case."""
    run = config(folder, algorithm={"name": "ffa-lora"}, rounds=3)
    expected = simulated(folder, run, tmp_path / "simulation")
    parties = Parties(folder, state=tmp_path)

    def started() -> None:
        before = len(parties.told)
        parties.start("south")
        until(lambda: any(line.startswith("south takes part") for line in parties.told[before:]))

    def act(done: int) -> None:
        parties.stop("south")
        if done < run["rounds"]:
            shutil.rmtree(tmp_path / "at-south")
            started()
            parties.stop("south")
            start_over(tmp_path / "at-south")
        started()

    result = parties.run(run, tmp_path / "run", observer=Watch(done=act), patience=60.0)
    assert adapter(result.run_dir) == adapter(expected.run_dir)
    assert [r["bytes_down"] for r in result.history] == [r["bytes_down"] for r in expected.history]


@pytest.mark.slow
def test_sites_that_make_a_tensor_of_the_start_otherwise(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on other machines. They are sent this tensor and no other of the start, and the result is the same."""
    run = config(folder, algorithm={"name": "florg"}, rounds=2)
    expected = simulated(folder, run, tmp_path / "simulation")
    differing: dict[str, Tensor] = {}

    def start_of(*args: Any) -> Shared:
        params = parcel.start_of(*args).params
        name = next(n for n in params if n.endswith(".R"))
        differing[name] = params[name]
        return Shared({**params, name: params[name].nextafter(torch.tensor(1.0))})

    monkeypatch.setattr(seat, "start_of", start_of)
    parties = Parties(folder, state=tmp_path)
    result = parties.run(run, tmp_path / "run")
    assert adapter(result.run_dir) == adapter(expected.run_dir)
    firsts = [record["bytes_first_contact"] for record in result.history]
    assert firsts == [3 * num_bytes(differing), 0]
    assert [r["bytes_down"] - r["bytes_first_contact"] for r in result.history] == [
        r["bytes_down"] for r in expected.history
    ]


@pytest.mark.slow
@pytest.mark.parametrize("stay", [pytest.param(True, marks=pytest.mark.slow), False])
def test_server_that_dies_goes_on(folder: Path, tmp_path: Path, stay: bool) -> None:
    """It dies after a round that it has not written; its sites stay, or are started anew too."""
    run = of_method(folder, "fedsa-lora")
    expected = simulated(folder, run, tmp_path / "simulation")
    parties = Parties(folder, state=tmp_path)

    with pytest.raises(KeyboardInterrupt):
        parties.run(run, tmp_path / "run", observer=dying(2), keep=stay)
    # What was written of round 2 is lost with the machine.
    lines = (tmp_path / "run" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 2
    assert_equal(parties.resume(tmp_path / "run"), expected)


@pytest.mark.slow
def test_site_that_never_comes_and_one_that_comes_late(folder: Path, tmp_path: Path) -> None:
    """A client that is not there is as one that is not sampled."""
    labels, fewer = {"labels": ["neg", "pos"]}, {"min_clients": 1}
    run = config(folder, algorithm={"name": "rolora"}, rounds=4, task=labels, clients=fewer)
    expected = simulated(folder, run, tmp_path / "simulation", lambda attempt: ("ann",) if attempt < 2 else ())
    parties = Parties(folder, {"south": SITES["south"]}, state=tmp_path)

    def act(done: int) -> None:
        if done == 2:
            parties.start("north")
            until(lambda: any(line.startswith("north takes part") for line in parties.told))

    result = parties.run(run, tmp_path / "run", observer=Watch(done=act), answered=("south",))
    assert adapter(result.run_dir) == adapter(expected.run_dir)
    assert [r["failed"] for r in result.history] == [r["failed"] for r in expected.history]


@pytest.mark.slow
def test_whole_network_on_pictures(tmp_path: Path) -> None:
    """Built-in network, built-in digits in one file per client, the head at the clients."""
    pytest.importorskip("sklearn")
    train, test = digits()
    rows = {"ann": train[:60], "bob": train[60:100], "cid": train[100:180]}
    keys.make(["localhost"], list(SITES), tmp_path / "keys", days=10, clients=SITES)
    for site, clients in {**SITES, "all": list(rows)}.items():
        for client in clients:
            save_pictures(tmp_path / "data" / site / f"{client}.npz", rows[client])
    save_pictures(tmp_path / "data" / "test.npz", test[:50])
    run = {
        "rounds": 2,
        "algorithm": {"name": "fedrep"},
        "model": {"name": "builtin:mlp"},
        "task": {"kind": "image-classification", "labels": [str(i) for i in range(10)], "image_shape": [8, 8, 1]},
        "train": {"what": "all", "batch_size": 10, "lr": 0.05, "optimizer": "sgd"},
        "data": {"test_source": str(tmp_path / "data" / "test.npz")},
        "simulation": {"cohort": 1},
    }
    expected = simulated(tmp_path, run, tmp_path / "simulation")
    parties = Parties(tmp_path)
    assert_equal(parties.run(run, tmp_path / "run", wait=20.0), expected)


def save_pictures(path: Path, rows: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    images = np.stack([np.asarray(row["image"]) for row in rows])
    np.savez(path, image=images, label=np.array([int(row["label"]) for row in rows]))
