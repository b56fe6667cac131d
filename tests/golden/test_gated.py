"""The methods with several pairs of factors in a layer against numbers that an independent NumPy script computed
(``generate_gated.py``): in each round what every client is sent, its first loss, what it uploads and keeps."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from numbers_of_files import tensors
from torch import Tensor

from rondo import algorithms
from rondo.algorithm import Client, Round, Shared, Weight
from rondo.algorithms.table import TABLE
from rondo.lowrank import GrowingSum
from rondo.models.networks.pairs import add_weighed
from rondo.params import Params, client_row, pick, router, stack_clients
from rondo.testing import SgdTrainer

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in (HERE / "gated").glob("*.json"))
HEAD, NEWCOMER = "head:out.weight", Client("newcomer", 1)


def close(actual: Params, expected: Mapping[str, Any], what: str) -> None:
    assert actual.keys() >= expected.keys(), what
    for name, value in tensors(expected).items():
        torch.testing.assert_close(
            actual[name], value, rtol=0, atol=1e-10, msg=lambda text, name=name: f"{what}, {name}: {text}"
        )


def test_every_gated_method_has_two_files() -> None:
    for name in (n for n, entry in TABLE.items() if entry.traits.gated):
        assert len([file for file in NAMES if file.startswith(name)]) == 2


@pytest.mark.parametrize("together", [False, True], ids=["one at a time", "cohort"])
@pytest.mark.parametrize("name", NAMES)
def test_every_round_equals_the_oracles(name: str, together: bool) -> None:
    data = json.loads((HERE / "gated" / f"{name}.json").read_text(encoding="utf-8"))
    method = max((n for n in TABLE if name.startswith(n)), key=len)
    algorithm, matrices = algorithms.get(method), tensors(data["W0"])
    clients = {c: Client(c, len(d["x"])) for c, d in data["clients"].items()}
    given = {c: (tensors(d["x"]), tensors(d["y"])) for c, d in data["clients"].items()}

    def at(index: int) -> Round:
        return Round(index, len(data["expected"]), 0, len(clients))

    def loss(client: str, seen: Params, base: Mapping[str, GrowingSum], rows: Sequence[int] | None = None, /) -> Tensor:
        x, y = given[client]
        for m, w in matrices.items():
            a, b, gates = (seen[f"{m}.{n}"][None] for n in ("A", "B", "router"))
            x = torch.tanh(add_weighed((x @ w.T)[None], x[None], x[None], a, data["scale"][m] * b, gates)[0])
        return 0.5 * (x @ seen[HEAD].T - y).square().sum(-1).mean()

    weights = {m: Weight(tuple(w.shape), data["scale"][m], lambda w=w: w) for m, w in matrices.items()}  # type: ignore[arg-type, misc]
    state, kept = algorithm.init(tensors(data["init"]), weights, at(0)), dict[str, Params]()
    routers = dict(zip(pick(state.params, router), tensors(data["routers"]).values(), strict=True))
    state = replace(state, params={**state.params, **routers})
    for index, expected in enumerate(data["expected"]):
        what, present, uploads = f"{name}, round {index}", [clients[c] for c in expected["loss"]], []
        shared = {c.id: algorithm.broadcast(state, c, at(index)) for c in present}
        for c in present:
            close(shared[c.id].params, expected["sent"][c.id], f"{what}, sent to {c.id}")
            kept.setdefault(c.id, algorithm.local_init(shared[c.id], c))
            first = loss(c.id, algorithm.view(shared[c.id], kept[c.id]), {})
            torch.testing.assert_close(first, tensors(expected["loss"][c.id]), rtol=0, atol=1e-10)
        for cohort in [tuple(present)] if together else [(c,) for c in present]:
            trainer = SgdTrainer(cohort, at(index), loss, {}, steps=data["steps"], lr=data["lr"])
            batched = Shared(stack_clients(shared[c.id].params for c in cohort))
            sent, local = algorithm.client_update(batched, stack_clients(kept[c.id] for c in cohort), trainer)
            kept |= {c.id: client_row(local, k) for k, c in enumerate(cohort)}
            uploads += sent
        for upload in uploads:
            close(upload.params, expected["uploads"][upload.client.id], f"{what}, upload of {upload.client.id}")
            assert upload.params.keys() == expected["uploads"][upload.client.id].keys()
            close(kept[upload.client.id], expected["kept"][upload.client.id], f"{what}, kept by {upload.client.id}")
        state = algorithm.aggregate(state, uploads, at(index))
        close(algorithm.broadcast(state, NEWCOMER, at(index + 1)).params, expected["newcomer"], f"{what}, newcomer")


def test_oracle_reproduces_the_files() -> None:
    script = [sys.executable, str(HERE / "generate_gated.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok  ") == len(NAMES)
