"""The methods of least squares obey the laws, on a problem of least squares."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rondo import algorithms
from rondo.algorithm import Fit, FitOptions, Round, Shared, Trainer, Uploads
from rondo.errors import ConfigError
from rondo.params import Params, add_client_axis, head, up
from rondo.testing import LAWS, SgdTrainer, TwoLayers, check_algorithm
from rondo.testing.run import RegressionTestbed

QR = {"consensus", "whole tensors"}
"""Laws that a normalisation breaks: where all clients reach one model, the new model is another, and the mean of whole
tensors is not what the server keeps."""
START = {"first round learns", "frozen stay frozen", "zero steps"}
"""Laws that moments break: the first round sends no model and decides the representation."""

METHODS: list[tuple[str, dict[str, Any], set[str]]] = [
    ("ffa-linear", {}, {"bytes"}),  # B is the same in every round, so it goes down once
    ("rolora-linear", {}, QR - {"whole tensors"}),
    ("fedrep-linear", {}, QR | START),
    ("fedrep-linear", {"start": "given"}, QR),
    ("fedrep-linear", {"start": "given", "head_steps": 2}, QR),
]
"""Methods with their fields and the laws that they break by their paper's definition."""


@pytest.mark.parametrize(("name", "fields", "broken"), METHODS)
def test_linear_method_obeys_the_laws(name: str, fields: dict[str, Any], broken: set[str]) -> None:
    entry, algorithm = algorithms.entry(name), algorithms.get(name, **fields)
    results = check_algorithm(algorithm, formulas=(entry.up_numbers, entry.down_numbers), seeds=(0,))
    assert {r.law for r in results} == {*LAWS, "bytes"}
    assert {r.law for r in results if r.outcome == "failed"} == broken
    absent = {"exactness": not algorithm.traits.exact, "whole tensors": entry.traits.needs_factors}
    without = {r.law for r in results if r.outcome == "not applicable"}
    assert without == {law for law, is_so in absent.items() if is_so}


def test_sgd_trainer_solves_exactly() -> None:
    problem = RegressionTestbed.make(0, factors=True)
    trainer = SgdTrainer(problem.clients, Round(0, 1, 0, 3), problem.loss)
    fit = trainer.solve(add_client_axis(problem.params, 3), train=up)
    for k, client in enumerate(problem.clients):
        x, y = problem.data[client.id]
        hidden = 1.5 * x @ problem.params["layer.A"].mT
        expected = torch.linalg.lstsq(hidden, y - x @ problem.weights["layer"].matrix().mT).solution.mT
        torch.testing.assert_close(fit.params["layer.B"][k], expected, rtol=0, atol=1e-11)


def test_sgd_trainer_refuses_another_loss() -> None:
    problem = TwoLayers.make(0)
    trainer = SgdTrainer(problem.clients, Round(0, 1, 0, 3), problem.loss)
    params = add_client_axis({n: t + 0.1 for n, t in problem.params.items()}, 3)
    trainer.solve(params, train=head)
    with pytest.raises(ValueError, match="not quadratic"):
        trainer.solve(params, train=up)


class StepsAlone(Trainer):
    """A trainer that a stranger writes: what is abstract, and no more."""

    def __init__(self, trainer: SgdTrainer) -> None:
        self.trainer, self.clients, self.round, self.lr = trainer, trainer.clients, trainer.round, trainer.lr

    def fit_with(self, params: Params, options: FitOptions) -> Fit:
        return self.trainer.fit_with(params, options)

    def upload(self, params: Params, weight: torch.Tensor | None = None) -> Uploads:
        return self.trainer.upload(params, weight)


def test_trainer_that_takes_steps_alone_is_enough_for_other_methods() -> None:
    problem = TwoLayers.make(0)
    trainer = StepsAlone(SgdTrainer(problem.clients, Round(0, 1, 0, 3), problem.loss))
    shared = Shared(add_client_axis(problem.params, 3))
    uploads, _ = algorithms.get("ffa-lora").client_update(shared, {}, trainer)
    assert len(uploads) == 3
    with pytest.raises(ConfigError, match=r"algorithm\.name: StepsAlone trains by steps alone"):
        algorithms.get("ffa-linear").client_update(shared, {}, trainer)
