"""The methods of least squares obey the laws, on problems of least squares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from rondo import algorithms
from rondo.algorithm import Client, Round, Weight
from rondo.lowrank import GrowingSum
from rondo.params import Params, add_client_axis, head, up
from rondo.testing import LAWS, LinearProblem, SgdTrainer, check_algorithm


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class Regression:
    """y = (W + scale B A) x with factors, or y = H P x with a representation P and a head H."""

    weights: Mapping[str, Weight]
    params: Params
    data: Mapping[str, tuple[Tensor, Tensor]]
    clients: tuple[Client, ...]
    rank: int = 2

    @staticmethod
    def make(seed: int, *, factors: bool) -> Regression:
        g = torch.Generator().manual_seed(seed)
        matrix = normal(g, 3, 5)
        if factors:
            weights = {"layer": Weight((3, 5), 1.5, lambda: matrix)}
            params = {"layer.A": normal(g, 2, 5), "layer.B": torch.zeros(3, 2, dtype=torch.float64)}
        else:
            weights, params = {}, {"plain.weight": normal(g, 2, 5), "head:top": normal(g, 3, 2)}
        clients = tuple(Client(f"client-{k}", 6 + 3 * k) for k in range(3))
        inputs = {c.id: normal(g, c.num_examples, 5) for c in clients}
        return Regression(weights, params, {c: (x, x @ normal(g, 5, 3)) for c, x in inputs.items()}, clients)

    def delta(self, seen: Params, base: Mapping[str, GrowingSum], path: str) -> Tensor:
        return self.weights[path].scale * seen[f"{path}.B"] @ seen[f"{path}.A"]

    def loss(
        self, client: str, seen: Params, base: Mapping[str, GrowingSum], rows: Sequence[int] | None = None
    ) -> Tensor:
        x, y = self.data[client]
        if rows is not None:
            x, y = x[rows], y[rows]
        if self.weights:
            matrix = self.weights["layer"].matrix() + self.delta(seen, base, "layer")
        else:
            matrix = seen["head:top"] @ seen["plain.weight"]
        return 0.5 * (x @ matrix.mT - y).square().sum(-1).mean()


BROKEN = {
    "ffa-linear": set(),
    # A is normalised, and B stays: where all clients reach one model, the new model is another. Every round takes its
    # step, whatever the run's number of steps is.
    "rolora-linear": {"consensus", "zero steps"},
    # The moments of the first round decide the representation.
    "fedrep-linear": {"frozen stay frozen"},
}
"""The laws that a method breaks, by its paper's definition."""
ABSENT = {
    "ffa-linear": {"shared head", "bytes"},
    "rolora-linear": {"shared head", "bytes", "exactness"},
    "fedrep-linear": {"shared head", "bytes", "exactness"},
}
"""The laws whose subject a method does not have. Formulas are about factors, and none is given here."""


@pytest.mark.parametrize("name", BROKEN)
def test_linear_method_obeys_the_laws(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = algorithms.entry(name)

    class Problem:
        @staticmethod
        def make(seed: int) -> Regression:
            return Regression.make(seed, factors=entry.needs_factors)

    monkeypatch.setattr("rondo.testing.run.LinearProblem", Problem)
    results = {r.law: r for r in check_algorithm(algorithms.get(name), seeds=(0,))}
    assert results.keys() == {*LAWS, "bytes"}
    failed = {law: r.detail for law, r in results.items() if r.outcome == "failed"}
    assert failed.keys() == BROKEN[name], failed
    assert {law for law, r in results.items() if r.outcome == "not applicable"} == ABSENT[name]


def test_sgd_trainer_solves_exactly() -> None:
    problem = Regression.make(0, factors=True)
    trainer = SgdTrainer(problem.clients, Round(0, 1, 0, 3), problem.loss)
    fit = trainer.solve(add_client_axis(problem.params, 3), train=up)
    for k, client in enumerate(problem.clients):
        x, y = problem.data[client.id]
        hidden = 1.5 * x @ problem.params["layer.A"].mT
        expected = torch.linalg.lstsq(hidden, y - x @ problem.weights["layer"].matrix().mT).solution.mT
        torch.testing.assert_close(fit.params["layer.B"][k], expected, rtol=0, atol=1e-11)


def test_sgd_trainer_refuses_another_loss() -> None:
    problem = LinearProblem.make(0)
    trainer = SgdTrainer(problem.clients, Round(0, 1, 0, 3), problem.loss)
    params = add_client_axis({n: t + 0.1 for n, t in problem.params.items()}, 3)
    trainer.solve(params, train=head)
    with pytest.raises(ValueError, match="not quadratic"):
        trainer.solve(params, train=up)
