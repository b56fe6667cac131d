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
from numbers_of_files import signed, tensors
from torch import Tensor

from rondo import algorithms
from rondo.algorithm import Algorithm, Client, Round, ServerState, Shared, Upload, Weight
from rondo.algorithms.parts.gram import GramState
from rondo.algorithms.table import TABLE
from rondo.lowrank import GrowingSum
from rondo.params import Params, client_row, stack_clients
from rondo.testing import SgdTrainer

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in HERE.glob("*.json"))
TOLERANCE = 1e-10
HEAD = "head:out.weight"

SPECIAL: dict[str, tuple[str, dict[str, Any]]] = {
    "fedloru": ("fedloru", {"tau": 2}),
    "fedloru-momentum": ("fedloru", {"tau": 2, "restart": "momentum"}),
    "pfedloru": ("pfedloru", {"tau": 2}),
    "ravan": ("ravan", {"heads": 2}),
    "lora-fair": ("lora-fair", {"penalty": 0.01}),
    "lora-fair-frobenius": ("lora-fair", {"objective": "frobenius", "penalty": 0.01}),
    "mfedloru": ("mfedloru", {"tau": 2, "nested_scale": 0.5}),
    "pfedlora-together": ("pfedlora", {"phases": "together"}),
    "pfedlora-weight": ("pfedlora", {"units": "weight"}),
    "slora": ("slora", {"sparse_rounds": 2, "density": 0.25}),
    "slora-weight": ("slora", {"sparse_rounds": 2, "density": 0.25, "units": "weight"}),
    "flexlora-client-scale": ("flexlora", {"client_scale": "rank"}),
    "flora-client-scale": ("flora", {"client_scale": "rank"}),
}
"""Files whose algorithm has another name or fields."""

SIGNS_OPEN = (
    *("flexlora", "flexlora-client-scale", "fedsvd", "federa", "fedhm", "slora", "slora-weight"),
    *("raflora", "fedmomentum"),
)
"""An SVD leaves the signs of A's rows and B's columns open: compare factors up to sign, products as they are."""


def algorithm_of(name: str) -> Algorithm[Any]:
    known, fields = SPECIAL.get(name, (name, {}))
    return algorithms.get(known, **fields)


@dataclass
class Golden:
    """One JSON file: a problem and the expected result of each round."""

    data: dict[str, Any]

    @staticmethod
    def read(name: str) -> Golden:
        return Golden(json.loads((HERE / f"{name}.json").read_text(encoding="utf-8")))

    @property
    def clients(self) -> tuple[Client, ...]:
        return tuple(Client(c, len(d["x"]), d.get("rank")) for c, d in self.data["clients"].items())

    def delta_w(self, seen: Params) -> Tensor:
        return self.data["scale"] * (seen["layer.B"] @ seen["layer.A"])

    def change(self, seen: Params, base: Mapping[str, GrowingSum]) -> Tensor:
        """The change of the weight: the base's change and the factors' product."""
        return self.delta_w(seen) + (base["layer"].factors().dense() if "layer" in base else 0.0)

    def loss(self, client: str, seen: Params, base: Mapping[str, GrowingSum]) -> Tensor:
        x, y = (tensors(self.data["clients"][client][n]) for n in "xy")
        hidden = torch.tanh(x @ (tensors(self.data["W0"]) + self.change(seen, base)).T)
        return 0.5 * (hidden @ seen[HEAD].T - y).square().sum(-1).mean()

    def start(self, algorithm: Algorithm[Any]) -> Any:
        init, matrix = tensors(self.data["init"]), tensors(self.data["W0"])
        if "layer.G" in init:  # the file fixes G, L and R, which init would draw
            return GramState(init, {})
        if "layer.C" in init:  # the file fixes L and R
            return ServerState(init)
        weight = Weight((matrix.shape[0], matrix.shape[1]), self.data["scale"], lambda: matrix)
        return algorithm.init(init, {"layer": weight}, self.at(0))

    def at(self, index: int) -> Round:
        return Round(index, self.data["rounds"], self.data["seed"], len(self.data["clients"]))

    def trainer(self, clients: tuple[Client, ...], index: int, base: Mapping[str, GrowingSum]) -> SgdTrainer:
        steps, lr = self.data["local_steps"], self.data["lr"]
        return SgdTrainer(clients, self.at(index), self.loss, base, steps=steps, lr=lr)

    def draws(self) -> list[Tensor]:
        """Factors drawn anew, in the order of the draws."""
        first = [tensors(self.data["personal"])] if "personal" in self.data else []
        return first + [tensors(d) for drawn in self.data.get("draws", []) if drawn is not None for d in drawn.values()]


def zeros(rows: int, columns: int) -> Tensor:
    return torch.zeros(rows, columns, dtype=torch.float64)


def close(actual: Tensor, expected: Any, what: str) -> None:
    torch.testing.assert_close(
        actual, tensors(expected), rtol=0, atol=TOLERANCE, msg=lambda message: f"{what}: {message}"
    )


def assert_same(actual: Params, expected: Mapping[str, Any], what: str, *, signs_open: bool = False) -> None:
    assert actual.keys() == expected.keys(), what
    for name in expected:
        one, other = actual[name].double(), tensors(expected[name])
        if signs_open:
            one, other = signed(name, one), signed(name, other)
        torch.testing.assert_close(
            one, other, rtol=0, atol=TOLERANCE, msg=lambda message, name=name: f"{what}, {name}: {message}"
        )


def sketch(anchor: Tensor, g: Tensor) -> Tensor:
    """(V G^T) G by NumPy, V from anchor = R V with R lower triangular of positive diagonal."""
    q, r = np.linalg.qr(anchor.numpy().T)
    v = (q * np.sign(np.diag(r))).T
    return torch.from_numpy(v @ g.numpy().T @ g.numpy())


def test_every_method_for_factors_has_a_golden_file() -> None:
    """Those of least squares have oracles of their own (tests/algorithms/test_linear_methods.py), and those of several
    pairs of factors (test_gated.py)."""
    of_factors = {n for n in algorithms.names() if TABLE[n].traits.needs_factors}
    assert {SPECIAL.get(name, (name,))[0] for name in NAMES} == of_factors - {n for n in TABLE if TABLE[n].traits.gated}


@pytest.mark.parametrize("cohort", [False, True], ids=["one by one", "cohort"])
@pytest.mark.parametrize("name", NAMES)
def test_every_round_equals_the_oracles(name: str, cohort: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    golden, algorithm = Golden.read(name), algorithm_of(name)
    draws, signs_open = iter(golden.draws()), name in SIGNS_OPEN
    monkeypatch.setattr("rondo.messages.fresh_factors", lambda shape, rank, *_: (next(draws), zeros(shape[0], rank)))
    if "mask" in golden.data:
        mask = torch.tensor(golden.data["mask"], dtype=torch.int32)
        monkeypatch.setattr("rondo.algorithms.factors.slora.positions", lambda count, size, generator: mask[:count])
    state = golden.start(algorithm)
    if "start" in golden.data:
        start = golden.data["start"]
        assert_same(state.params, start["state"], f"{name}, start", signs_open=signs_open)
        if "base" in start:
            close(state.base["layer"].factors().dense(), start["base"], f"{name}, base at the start")
    locals_: dict[str, Params] = {}
    for index, expected in enumerate(golden.data["expected"]):
        what = f"{name}, round {index}"
        shared = {c.id: algorithm.broadcast(state, c, golden.at(index)) for c in golden.clients}
        for c in golden.clients:
            locals_.setdefault(c.id, algorithm.local_init(shared[c.id], c))
            if not name.startswith(("flora", "florist")):  # whose clients start from their own factors
                first = golden.loss(c.id, algorithm.view(shared[c.id], locals_[c.id]), shared[c.id].base)
                close(first, expected["loss"][c.id], f"{what}, starting loss of {c.id}")
        fitted, uploads = {}, []
        for clients in [golden.clients] if cohort else [(c,) for c in golden.clients]:
            base = shared[clients[0].id].base
            trainer = golden.trainer(clients, index, base)
            batched = Shared(stack_clients(shared[c.id].params for c in clients), base)
            given, kept = algorithm.client_update(batched, stack_clients(locals_[c.id] for c in clients), trainer)
            uploads.extend(given)
            for k, c in enumerate(clients):
                locals_[c.id], fitted[c.id] = client_row(kept, k), client_row(trainer.fits[-1], k)
        if "weights" in expected:
            mass = sum(u.weight for u in uploads)
            for u in uploads:
                assert u.weight / mass == pytest.approx(expected["weights"][u.client.id], abs=TOLERANCE)
        before, state = state, algorithm.aggregate(state, uploads, golden.at(index))

        for upload in uploads:
            fit = fitted[upload.client.id]
            assert_upload(algorithm, upload, fit, before.params, expected, what, signs_open=signs_open)
            assert_same(locals_[upload.client.id], expected["local"][upload.client.id], f"{what}, kept")
        compared = {n: state.params[n] for n in expected["state"]}
        assert_same(compared, expected["state"], f"{what}, state", signs_open=signs_open)
        if expected["delta_w"] is not None:
            broadcast = algorithm.broadcast(state, Client("new", 1), golden.at(index + 1))
            close(golden.change(algorithm.view(broadcast, {}), broadcast.base), expected["delta_w"], f"{what}, delta W")
        if "base" in expected and "layer" in state.base:
            close(state.base["layer"].factors().dense(), expected["base"], f"{what}, base")
    assert next(draws, None) is None


def assert_upload(
    algorithm: Algorithm[Any],
    upload: Upload,
    fitted: Params,
    state: Params,
    expected: dict[str, Any],
    what: str,
    *,
    signs_open: bool,
) -> None:
    """The upload equals the oracle's. FLoRG uploads a sketch: compare its trained G, and the sketch with that of G."""
    uploaded, wanted = dict(upload.params), dict(expected["uploads"][upload.client.id])
    if isinstance(algorithm, algorithms.load("florg")):
        assert_same({"layer.G": fitted["layer.G"]}, {"layer.G": wanted["layer.G"]}, f"{what}, trained")
        wanted["layer.G"] = sketch(state["layer.G"], fitted["layer.G"]).tolist()
    assert_same(uploaded, wanted, f"{what}, upload of {upload.client.id}", signs_open=signs_open)
    if "weights" not in expected:
        assert upload.weight == upload.client.num_examples


def test_oracle_reproduces_the_files() -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok  ") == len(NAMES)
