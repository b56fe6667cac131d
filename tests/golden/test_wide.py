"""Every method on two layers of different shape and scale, with clients of different rank that miss rounds and fields
other than the default, against numbers that an independent NumPy script computed (``generate_wide.py``)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from numbers_of_files import signed, tensors
from torch import Tensor

from rondo import algorithms
from rondo.algorithm import Algorithm, Client, Round, ServerState, Shared, Weight
from rondo.algorithms.table import TABLE
from rondo.lowrank import GrowingSum
from rondo.params import Params, client_row, stack_clients
from rondo.testing import SgdTrainer

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in (HERE / "wide").glob("*.json"))
SIGNS_OPEN = ("flexlora", "fedsvd", "federa", "fedhm", "slora", "raflora", "fedmomentum")
"""An SVD leaves the signs of A's rows and B's columns open: compare factors up to sign, products as they are."""
HEAD = "head:out.weight"
NEWCOMER = Client("new", 1)


@dataclass
class Wide:
    """One JSON file: the problem, the method's inputs and the expected result of each round."""

    name: str
    data: dict[str, Any]

    @staticmethod
    def read(name: str) -> Wide:
        return Wide(name, json.loads((HERE / "wide" / f"{name}.json").read_text(encoding="utf-8")))

    @property
    def algorithm(self) -> Algorithm[Any]:
        return algorithms.get(self.data["method"], **self.data["fields"])

    def clients(self, ids: Mapping[str, Any]) -> tuple[Client, ...]:
        rows = self.data["clients"]
        return tuple(Client(c, len(rows[c]["x"]), rows[c].get("rank")) for c in ids)

    def at(self, index: int) -> Round:
        return Round(index, len(self.data["expected"]), self.data["seed"], len(self.data["clients"]))

    def weights(self) -> dict[str, Weight]:
        matrices = tensors(self.data["W0"])
        return {
            m: Weight(tuple(w.shape), self.data["scale"][m], lambda w=w: w)  # type: ignore[misc]
            for m, w in matrices.items()
        }

    def start(self, algorithm: Algorithm[Any], monkeypatch: pytest.MonkeyPatch) -> Any:
        """The server's first state. The file fixes what ``init`` draws: G, C, L and R, and SLoRA's positions."""
        init, first = tensors(self.data["init"]), self.data["start"]["state"]
        if "first.C" in init:
            return ServerState(init)
        if "first.G" not in init:
            masks = iter([torch.tensor(v, dtype=torch.int32) for n, v in first.items() if n.endswith(".I")])
            monkeypatch.setattr(
                "rondo.algorithms.factors.slora.positions", lambda count, *_: checked(next(masks), (count,))
            )
            return algorithm.init(init, self.weights(), self.at(0))
        bases, roots = (iter(self.data["W0"]) for _ in range(2))
        monkeypatch.setattr("rondo.algorithms.parts.gram._bases", lambda *_: pair(init, next(bases)))
        monkeypatch.setattr("rondo.algorithms.parts.gram._gram", lambda *_: init[f"{next(roots)}.G"])
        lora = {HEAD: init[HEAD]}
        for m, w in tensors(self.data["W0"]).items():
            rank = len(init[f"{m}.G"])
            lora |= {f"{m}.A": torch.ones(rank, w.shape[1]).double(), f"{m}.B": torch.zeros(len(w), rank).double()}
        return algorithm.init(lora, self.weights(), self.at(0))

    def change(self, seen: Params, base: Mapping[str, GrowingSum], m: str) -> Tensor:
        own = base[m].factors().dense() if m in base else torch.zeros(1, dtype=torch.float64)
        return own + self.data["scale"][m] * (seen[f"{m}.B"] @ seen[f"{m}.A"])

    def loss(self, client: str, seen: Params, base: Mapping[str, GrowingSum]) -> Tensor:
        x, y = (tensors(self.data["clients"][client][n]) for n in "xy")
        for m, w in tensors(self.data["W0"]).items():
            x = torch.tanh(x @ (w + self.change(seen, base, m)).T)
        return 0.5 * (x @ seen[HEAD].T - y).square().sum(-1).mean()

    def assert_same(self, actual: Params, expected: Mapping[str, Any], what: str) -> None:
        assert actual.keys() == expected.keys(), what
        for name, value in tensors(expected).items():
            if not value.numel():  # JSON knows no width of no rows
                value = value.reshape(actual[name].shape)
            assert_close(self.signless(name, actual[name]), self.signless(name, value), f"{what}, {name}")

    def signless(self, name: str, tensor: Tensor) -> Tensor:
        return signed(name, tensor.double()) if self.name in SIGNS_OPEN else tensor.double()


def assert_close(actual: Tensor, expected: Tensor, what: str) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10, msg=lambda text: f"{what}: {text}")


def checked(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    assert tuple(tensor.shape) == shape
    return tensor


def pair(init: Params, m: str) -> tuple[Tensor, Tensor]:
    return init[f"{m}.L"], init[f"{m}.R"]


def test_every_method_for_factors_has_a_wide_file() -> None:
    assert {Wide.read(name).data["method"] for name in NAMES} == {
        n
        for n, entry in TABLE.items()
        if entry.traits.needs_factors and not (entry.traits.least_squares or entry.traits.gated)
    }


@pytest.mark.parametrize("name", NAMES)
def test_two_layers_and_absent_clients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = Wide.read(name)
    algorithm, draws = wide.algorithm, iter([tensors(d) for d in wide.data["draws"]])

    def drawn(shape: tuple[int, int], rank: int, *_: Any) -> tuple[Tensor, Tensor]:
        return checked(next(draws), (rank, shape[1])), torch.zeros(shape[0], rank, dtype=torch.float64)

    monkeypatch.setattr("rondo.messages.fresh_factors", drawn)
    state, locals_ = wide.start(algorithm, monkeypatch), dict[str, Params]()
    first = wide.data["start"]["state"]
    wide.assert_same({n: state.params[n] for n in first}, first, f"{name}, start")
    for m, base in tensors(wide.data["start"]["base"]).items():
        assert_close(state.base[m].factors().dense(), base, f"{name}, base of {m} at the start")
    for index, expected in enumerate(wide.data["expected"]):
        what, present, uploads = f"{name}, round {index}", wide.clients(expected["loss"]), []
        ranks_differ = any("rank" in c for c in wide.data["clients"].values())
        for clients in [(c,) for c in present] if ranks_differ else [present]:
            shared = [algorithm.broadcast(state, c, wide.at(index)) for c in clients]
            for c, sent in zip(clients, shared, strict=True):
                locals_.setdefault(c.id, algorithm.local_init(sent, c))
                loss = wide.loss(c.id, algorithm.view(sent, locals_[c.id]), sent.base)
                assert_close(loss, tensors(expected["loss"][c.id]), f"{what}, starting loss of {c.id}")
            base = shared[0].base
            steps, lr = wide.data["steps"], wide.data["lr"]
            trainer = SgdTrainer(clients, wide.at(index), wide.loss, base, steps=steps, lr=lr)
            batched = Shared(stack_clients(s.params for s in shared), base)
            given, kept = algorithm.client_update(batched, stack_clients(locals_[c.id] for c in clients), trainer)
            for k, upload in enumerate(given):
                locals_[upload.client.id] = client_row(kept, k)
                wanted = expected["uploads"][upload.client.id]
                # FLoRG sends a sketch: compare its trained tensors, and the sketch by the new state.
                sent = {n: client_row(trainer.fits[-1], k)[n] for n in wanted} if name == "florg" else upload.params
                wide.assert_same(sent, wanted, f"{what}, upload of {upload.client.id}")
                wanted = expected["local"].get(upload.client.id, {})
                wide.assert_same(locals_[upload.client.id], wanted, f"{what}, kept by {upload.client.id}")
            uploads.extend(given)
        mass = sum(u.weight for u in uploads)
        for u in uploads:
            assert u.weight / mass == pytest.approx(expected["weights"][u.client.id], abs=1e-10), what
        state = algorithm.aggregate(state, uploads, wide.at(index))

        wide.assert_same({n: state.params[n] for n in expected["state"]}, expected["state"], f"{what}, state")
        newcomer = algorithm.broadcast(state, NEWCOMER, wide.at(index + 1))
        seen = algorithm.view(newcomer, {})
        for m, change in tensors(expected["model"] or {}).items():
            assert_close(wide.change(seen, newcomer.base, m), change, f"{what}, model, {m}")
    assert next(draws, None) is None


def test_oracle_reproduces_the_files() -> None:
    script = [sys.executable, str(HERE / "generate_wide.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok  ") == len(NAMES)
