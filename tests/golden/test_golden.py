"""Every algorithm against numbers that an independent NumPy script computed from its paper (``generate.py``)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from rondo import algorithms
from rondo.algorithm import Algorithm, Client, Round, Shared, Upload, Weight
from rondo.gram import GramState
from rondo.lowrank import LowRank
from rondo.params import Params, client_row, stack_clients
from rondo.testing import SgdTrainer

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in HERE.glob("*.json"))
TOLERANCE = 1e-10
HEAD = "head:out.weight"


def tensors(tree: Any) -> Any:
    """Nested lists of numbers as float64 tensors, inside dicts as they are."""
    if isinstance(tree, dict):
        return {k: tensors(v) for k, v in tree.items()}
    return torch.tensor(tree, dtype=torch.float64)


@dataclass
class Golden:
    """One JSON file: a problem and what each of its rounds must give."""

    data: dict[str, Any]

    @staticmethod
    def read(name: str) -> Golden:
        return Golden(json.loads((HERE / f"{name}.json").read_text(encoding="utf-8")))

    @property
    def clients(self) -> tuple[Client, ...]:
        return tuple(Client(c, len(d["x"])) for c, d in self.data["clients"].items())

    def delta_w(self, seen: Params) -> Tensor:
        return self.data["scale"] * (seen["layer.B"] @ seen["layer.A"])

    def loss(self, client: str, seen: Params, base: Mapping[str, tuple[LowRank, ...]]) -> Tensor:
        x, y = (tensors(self.data["clients"][client][n]) for n in "xy")
        hidden = torch.tanh(x @ (tensors(self.data["W0"]) + self.delta_w(seen)).T)
        return 0.5 * (hidden @ seen[HEAD].T - y).square().sum(-1).mean()

    def start(self, algorithm: Algorithm[Any]) -> Any:
        init, matrix = tensors(self.data["init"]), tensors(self.data["W0"])
        if "layer.G" in init:  # the file fixes G, L and R, which init would draw
            return GramState(init, {})
        weight = Weight((matrix.shape[0], matrix.shape[1]), self.data["scale"], lambda: matrix)
        return algorithm.init(init, {"layer": weight}, self.at(0))

    def at(self, index: int) -> Round:
        return Round(index, self.data["rounds"], self.data["seed"], len(self.data["clients"]))

    def trainer(self, clients: tuple[Client, ...], index: int) -> SgdTrainer:
        return SgdTrainer(clients, self.at(index), self.loss, steps=self.data["local_steps"], lr=self.data["lr"])


def close(actual: Tensor, expected: Any, what: str) -> None:
    torch.testing.assert_close(
        actual, tensors(expected), rtol=0, atol=TOLERANCE, msg=lambda message: f"{what}: {message}"
    )


def assert_same(actual: Params, expected: Mapping[str, Any], what: str) -> None:
    assert actual.keys() == expected.keys(), what
    for name in expected:
        close(actual[name], expected[name], f"{what}, {name}")


def sketch(anchor: Tensor, g: Tensor) -> Tensor:
    """(V G^T) G by NumPy, V from anchor = R V with R lower triangular of positive diagonal."""
    q, r = np.linalg.qr(anchor.numpy().T)
    v = (q * np.sign(np.diag(r))).T
    return torch.from_numpy(v @ g.numpy().T @ g.numpy())


def test_there_is_a_file_for_every_algorithm_of_the_table() -> None:
    assert set(NAMES) == set(algorithms.names())


@pytest.mark.parametrize("cohort", [False, True], ids=["one by one", "cohort"])
@pytest.mark.parametrize("name", NAMES)
def test_every_round_gives_the_oracles_numbers(name: str, cohort: bool) -> None:
    golden, algorithm = Golden.read(name), algorithms.get(name)
    state = golden.start(algorithm)
    locals_: dict[str, Params] = {}
    for index, expected in enumerate(golden.data["expected"]):
        what = f"{name}, round {index}"
        shared = {c.id: algorithm.broadcast(state, c, golden.at(index)) for c in golden.clients}
        for c in golden.clients:
            locals_.setdefault(c.id, algorithm.local_init(shared[c.id], c))
            start = golden.loss(c.id, algorithm.view(shared[c.id], locals_[c.id]), {})
            close(start, expected["loss"][c.id], f"{what}, starting loss of {c.id}")
        fitted, uploads = {}, []
        for clients in [golden.clients] if cohort else [(c,) for c in golden.clients]:
            trainer = golden.trainer(clients, index)
            batched = Shared(stack_clients(shared[c.id].params for c in clients))
            sent, kept = algorithm.client_update(batched, stack_clients(locals_[c.id] for c in clients), trainer)
            uploads.extend(sent)
            for k, c in enumerate(clients):
                locals_[c.id], fitted[c.id] = client_row(kept, k), client_row(trainer.fits[-1], k)
        before, state = state, algorithm.aggregate(state, uploads, golden.at(index))

        for upload in uploads:
            assert_upload(algorithm, upload, fitted[upload.client.id], before.params, expected, what)
            assert_same(locals_[upload.client.id], expected["local"][upload.client.id], f"{what}, kept")
        assert_same({n: state.params[n] for n in expected["state"]}, expected["state"], f"{what}, state")
        if expected["delta_w"] is not None:
            view = algorithm.view(algorithm.broadcast(state, golden.clients[0], golden.at(index + 1)), {})
            close(golden.delta_w(view), expected["delta_w"], f"{what}, delta W")


def assert_upload(
    algorithm: Algorithm[Any], upload: Upload, fitted: Params, state: Params, expected: dict[str, Any], what: str
) -> None:
    """What was sent is the oracle's; where FLoRG sends a sketch, what was trained is, and the sketch is its own."""
    sent, due = dict(upload.params), dict(expected["uploads"][upload.client.id])
    if isinstance(algorithm, algorithms.load("florg")):
        assert_same({"layer.G": fitted["layer.G"]}, {"layer.G": due["layer.G"]}, f"{what}, trained")
        due["layer.G"] = sketch(state["layer.G"], fitted["layer.G"]).tolist()
    assert_same(sent, due, f"{what}, upload of {upload.client.id}")
    assert upload.weight == upload.client.num_examples


def test_the_oracle_still_gives_the_files() -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok  ") == len(NAMES)
