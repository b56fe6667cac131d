"""The methods that train whole tensors against numbers that an independent NumPy script computed
(``generate_whole.py``): clients of different size that miss rounds, join late or never take part."""

from __future__ import annotations

import functools
import itertools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from numbers_of_files import tensors
from torch import Tensor
from whole_trainer import BatchTrainer, WholeNetwork

from rondo import algorithms
from rondo.algorithm import Algorithm, Client, Round, Shared, Upload, Weight
from rondo.algorithms.table import TABLE
from rondo.params import Params, add_client_axis, client_row, stack_clients

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in (HERE / "whole").glob("*.json"))
FIXED: dict[str, dict[str, Any]] = {
    "apfl": {"mixing": "during", "adaptive": False},
    "apfl-factors": {"mixing": "during", "adaptive": False},
    "apfl-adaptive": {"mixing": "during", "adaptive": True},
    "apfl-blend": {"mixing": "after", "adaptive": False},
}
"""Fields by which a file's method is chosen."""
FORMS = {"first-order": "fo", "hessian-free": "hf"}
OPTIONS = {1: "I", 2: "II"}


@dataclass
class Whole:
    """One JSON file: the problem, the method's inputs and the expected result of each round."""

    name: str
    data: dict[str, Any]

    @staticmethod
    def read(name: str) -> Whole:
        return Whole(name, json.loads((HERE / "whole" / f"{name}.json").read_text(encoding="utf-8")))

    @property
    def method(self) -> str:
        return max((name for name in TABLE if self.name.startswith(name)), key=len)

    @property
    def algorithm(self) -> Algorithm[Any]:
        return algorithms.get(self.method, **FIXED.get(self.name, {}), **self.fields())

    def fields(self) -> dict[str, Any]:
        """The oracle's fields under our names."""
        given = dict(self.data["fields"])
        match self.method:
            case "ditto":
                return {"lam": given["lambda"], "personal_epochs": given["epochs"]}
            case "l2gd":  # alpha is the run's rate times n (1 - p), n being the number of clients
                assert given["alpha"] == pytest.approx(self.data["lr"] * given["n"] * (1 - given["p"]), abs=1e-15)
                return {"lam": given["lambda"], "p": given["p"]}
            case "apfl":
                return {"alpha": given["alpha"]}
            case "fed-mtl":
                return {"lam": given["lambda"]}
            case "scaffold":
                return {"option": OPTIONS[given["option"]], "server_lr": given["server_lr"]}
            case "per-fedavg":
                support = given["support"] or 0.5  # without one, the trainer's parts are both the whole batch
                return {"variant": FORMS[given["form"]], "support": support} | {
                    k: given[k] for k in ("inner_lr", "delta")
                }
            case _:
                return given

    @functools.cached_property
    def network(self) -> WholeNetwork:
        return WholeNetwork(tensors(self.data["W0"]), self.data["scale"])

    @functools.cached_property
    def rows(self) -> dict[str, tuple[Tensor, Tensor]]:
        return {c: (tensors(d["x"]), tensors(d["y"])) for c, d in self.data["clients"].items()}

    def client(self, name: str) -> Client:
        return Client(name, len(self.rows[name][0]))

    def at(self, index: int) -> Round:
        return Round(index, len(self.data["expected"]), self.data["seed"], len(self.rows))

    def weights(self) -> dict[str, Weight]:
        return {
            m: Weight((w.shape[0], w.shape[1]), self.data["scale"][m], lambda w=w: w)  # type: ignore[misc]
            for m, w in self.network.base.items()
        }

    def trainer(self, clients: Sequence[Client], index: int) -> BatchTrainer:
        # SCAFFOLD's mean is uniform in any run.
        uniform = self.data["weighting"] == "uniform" and self.method != "scaffold"
        weights = {c: 1.0 if uniform else float(len(x)) for c, (x, _) in self.rows.items()}
        lr, epochs, batch = (self.data[key] for key in ("lr", "epochs", "batch"))
        support = self.data["fields"].get("support")
        return BatchTrainer(
            tuple(clients), self.at(index), self.network, self.rows, lr, epochs, batch, weights, support
        )


def assert_close(actual: Tensor, expected: Tensor, what: str) -> None:
    torch.testing.assert_close(
        actual.double(), expected.double(), rtol=0, atol=1e-10, msg=lambda text: f"{what}: {text}"
    )


def ours(name: str) -> str:
    """Our name of one of the oracle's tensors."""
    return "aux:alpha" if name == "alpha" else name.replace("control:", "aux:")


def assert_same(actual: Params, expected: Mapping[str, Any], what: str) -> None:
    assert actual.keys() == {ours(n) for n in expected}, what
    for name, value in {ours(n): t for n, t in tensors(expected).items()}.items():
        assert_close(actual[name], value.reshape(actual[name].shape), f"{what}, {name}")


def feed_coins(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generators for the rounds of L2GD, from which it draws the file's coins.

    It draws numbers of coins: further ones while u < p, then further zeros while u < 1 - p.
    """
    p, coins = whole.data["fields"]["p"], "".join(map(str, whole.data["fields"]["coins"]))
    seeds = []
    for block in coins.replace("01", "0 1").split():
        wanted = [True] * (block.count("1") - 1) + [False], [True] * (block.count("0") - 1) + [False]
        seeds.append(next(s for s in itertools.count() if draws_of(s, wanted, p) == wanted))
    monkeypatch.setattr(Round, "generator", lambda self, *_: torch.Generator().manual_seed(seeds[self.index]))


def draws_of(seed: int, like: tuple[list[bool], list[bool]], p: float) -> tuple[list[bool], list[bool]]:
    """Whether each of a generator's first numbers is below p, and then whether each is below 1 - p."""
    generator = torch.Generator().manual_seed(seed)
    return tuple(  # type: ignore[return-value]
        [bool(torch.rand((), generator=generator, dtype=torch.float64) < bound) for _ in numbers]
        for numbers, bound in zip(like, (p, 1 - p), strict=True)
    )


def test_every_whole_method_has_a_golden_file() -> None:
    assert {Whole.read(name).method for name in NAMES} == {
        n for n, entry in TABLE.items() if not (entry.traits.needs_factors or entry.traits.least_squares)
    }


@pytest.mark.parametrize("cohort", [False, True], ids=["one by one", "cohort"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sweep(4)
def test_whole_tensors_and_absent_clients(name: str, cohort: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Whole.read(name)
    algorithm = whole.algorithm
    if whole.method == "l2gd":
        feed_coins(whole, monkeypatch)
    state, locals_ = algorithm.init(tensors(whole.data["init"]), whole.weights(), whole.at(0)), dict[str, Params]()
    for index, expected in enumerate(whole.data["expected"]):
        what, uploads = f"{name}, round {index}", list[Upload]()
        present = tuple(whole.client(c) for c in expected["loss"])
        for clients in [present] if cohort else [(c,) for c in present]:
            shared = [algorithm.broadcast(state, c, whole.at(index)) for c in clients]
            for c, sent in zip(clients, shared, strict=True):
                locals_.setdefault(c.id, algorithm.local_init(sent, c))
                seen = {n: t.clone() for n, t in algorithm.view(sent, locals_[c.id]).items()}
                loss = whole.network.loss(seen, whole.rows[c.id])
                assert_close(loss, tensors(expected["loss"][c.id]), f"{what}, starting loss of {c.id}")
            trainer = whole.trainer(clients, index)
            batched = Shared(stack_clients(s.params for s in shared), shared[0].base)
            given, kept = algorithm.client_update(batched, stack_clients(locals_[c.id] for c in clients), trainer)
            for k, c in enumerate(clients):
                locals_[c.id] = client_row(kept, k)
            uploads.extend(given)
        for u in uploads:
            sent = {n: t for n, t in u.params.items() if not n.startswith("aux:")}
            assert_same(sent, expected["uploads"][u.client.id], f"{what}, upload of {u.client.id}")
            assert_same(locals_[u.client.id], expected["local"].get(u.client.id, {}), f"{what}, kept by {u.client.id}")
        mass = sum(u.weight for u in uploads)
        for u in uploads:
            assert u.weight / mass == pytest.approx(expected["weights"][u.client.id], abs=1e-10), what
        state = algorithm.aggregate(state, uploads, whole.at(index))
        assert_same({ours(n): state.params[ours(n)] for n in expected["state"]}, expected["state"], f"{what}, state")
    if whole.data["adapted"]:
        newcomer = whole.client("e")
        sent = algorithm.broadcast(state, newcomer, whole.at(6))
        trainer = whole.trainer([newcomer], 6)
        sent = Shared(add_client_axis(sent.params), sent.base)
        local = add_client_axis(algorithm.local_init(algorithm.broadcast(state, newcomer, whole.at(6)), newcomer))
        adapted = algorithm.view(sent, algorithm.adapt(sent, local, trainer))
        assert_same(client_row(adapted, 0), whole.data["adapted"], f"{name}, a newcomer's model")


def test_oracle_reproduces_the_files() -> None:
    script = [sys.executable, str(HERE / "generate_whole.py"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok  ") == len(NAMES)
