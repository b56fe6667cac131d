"""Per-FedAvg against exact second derivatives, and its limit as FedAvg."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rondo.algorithm import Client, split_rows
from rondo.algorithms.whole.fedavg import FedAvg
from rondo.algorithms.whole.per_fedavg import PerFedAvg
from rondo.params import Params, add_client_axis, buffer, client_row, pick
from rondo.testing import SgdTrainer, TwoLayers, WholeLayers
from rondo.testing.run import Run, largest_gap

PROBLEMS = {"whole": WholeLayers.make(0), "factors": TwoLayers.make(0), "both": TwoLayers.make(1, beside=True)}
every_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
LR = 0.1


def meta_gradient(problem: Any, client: Client, w: Params, algorithm: PerFedAvg) -> dict[str, Tensor]:
    """The gradient of f(w - a grad f(w; D); D') by autograd through the inner step; without it for "fo"."""
    support, query = split_rows(client.num_examples, algorithm.support)
    leaves = {n: t.clone().requires_grad_() for n, t in pick(w, ~buffer).items()}

    def loss(at: Params, rows: list[int]) -> Tensor:
        value: Tensor = problem.loss(client.id, {**at, **{n: t.clone() for n, t in pick(w, buffer).items()}}, {}, rows)
        return value

    second_order = algorithm.variant == "hf"
    inner = torch.autograd.grad(loss(leaves, support), list(leaves.values()), create_graph=second_order)
    after = {n: t - algorithm.inner_lr * g for (n, t), g in zip(leaves.items(), inner, strict=True)}
    return dict(zip(leaves, torch.autograd.grad(loss(after, query), list(leaves.values())), strict=True))


@every_problem
@pytest.mark.parametrize("variant", ["fo", "hf"])
@pytest.mark.parametrize("support", [0.5, 0.7])
def test_step_is_along_the_meta_gradient(support: float, variant: Any, problem: Any) -> None:
    algorithm = PerFedAvg(variant, inner_lr=0.05, support=support, delta=1e-5)
    run = Run(algorithm, 0, problem, steps=2)
    run.step(0)
    client = run.clients[2]
    w: Params = run.state.params
    for _ in range(2):
        g = meta_gradient(problem, client, w, algorithm)
        w = {n: t if buffer(n) else t - LR * g[n] for n, t in w.items()}
    (outcome,) = run.train([client], 1)
    assert largest_gap(pick(outcome.upload.params, ~buffer), pick(w, ~buffer)) < (1e-12 if variant == "fo" else 1e-9)


def test_hessian_makes_a_difference() -> None:
    uploads = []
    for variant in ("fo", "hf"):
        run = Run(PerFedAvg(variant, inner_lr=0.05), 0, PROBLEMS["whole"])  # type: ignore[arg-type]
        uploads.append(run.step(0)[2].upload.params)
    assert largest_gap(*uploads) > 1e-3


@every_problem
@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_without_an_inner_step_it_is_fedavg_on_the_other_rows(variant: Any, problem: Any) -> None:
    class Others:
        """The problem whose clients have the rows D' only."""

        def __getattr__(self, name: str) -> Any:
            return getattr(problem, name)

        def loss(self, client: str, seen: Params, base: Any) -> Tensor:
            count = next(c.num_examples for c in problem.clients if c.id == client)
            value: Tensor = problem.loss(client, seen, base, split_rows(count, 0.5)[1])
            return value

    run, plain = Run(PerFedAvg(variant, inner_lr=0.0), 0, problem), Run(FedAvg(), 0, Others())  # type: ignore[arg-type]
    for index in range(3):
        run.step(index)
        plain.step(index)
    assert largest_gap(pick(run.state.params, ~buffer), pick(plain.state.params, ~buffer)) < 1e-12


@every_problem
def test_clients_model_is_one_step_away(problem: Any) -> None:
    algorithm = PerFedAvg(inner_lr=0.05)
    run = Run(algorithm, 0, problem)
    run.step(0)
    client = run.clients[1]
    shared = run.shared(client, 1)
    trainer = SgdTrainer((client,), run.round(1), problem.loss)
    adapted = client_row(algorithm.adapt(type(shared)(add_client_axis(shared.params)), {}, trainer), 0)
    leaves = {n: t.clone().requires_grad_() for n, t in pick(shared.params, ~buffer).items()}
    value = problem.loss(client.id, {**leaves, **{n: t.clone() for n, t in pick(shared.params, buffer).items()}}, {})
    grads = torch.autograd.grad(value, list(leaves.values()))
    expected = {n: (t - 0.05 * g).detach() for (n, t), g in zip(leaves.items(), grads, strict=True)}
    assert largest_gap(adapted, expected) < 1e-12
    seen = algorithm.view(shared, adapted)
    torch.testing.assert_close(pick(seen, buffer), pick(shared.params, buffer), rtol=0, atol=0)


@pytest.mark.parametrize(
    "fields", [{"variant": "so"}, {"inner_lr": -1.0}, {"support": 0.0}, {"support": 1.0}, {"delta": 0.0}], ids=str
)
def test_per_fedavg_names_a_field_out_of_range(fields: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        PerFedAvg(**fields)
