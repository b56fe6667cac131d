"""RAVAN against its paper in the paper's symbols: s_i, B_i, H_i and A_i of each head, by dense matrices and loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rondo import algorithms
from rondo.algorithm import Client, Round, Shared, Weight
from rondo.params import add_client_axis, client_row
from rondo.testing.run import Run
from rondo.testing.testbed import TwoLayers

H_OF, LR = "head:out.weight", 0.1  # the rate of the laws' trainer


def heads(state: dict[str, Tensor], path: str, h: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """B_i (d, r), H_i (r, r) and A_i (r, k) of the heads of one layer."""
    parts = (state[f"{path}.L"].chunk(h, 1), state[f"{path}.C"].chunk(h, 0), state[f"{path}.R"].chunk(h, 0))
    return list(zip(*parts, strict=True))


def local_training(run: Run, client: Client, h: int) -> tuple[dict[str, Tensor], list[dict[str, Tensor]]]:
    """One client's gradient descent on H_i, s_i and the task's head from the broadcast and s_i = 1: s_i H_i of each
    layer, and the task's head; and the client's dense change of each layer."""
    state = dict(run.state.params)
    frozen = {path: heads(state, path, h) for path in run.problem.weights}
    free = {("head", 0): state[H_OF].clone().requires_grad_()}
    for path, of in frozen.items():
        for i, (_, h_i, _) in enumerate(of):
            free[f"H {path}", i] = h_i.clone().requires_grad_()
            free[f"s {path}", i] = torch.ones((), dtype=torch.float64, requires_grad=True)
    x, y = run.problem.data[client.id]

    def change(path: str) -> Tensor:
        terms = [
            free[f"s {path}", i] * b_i @ free[f"H {path}", i] @ a_i for i, (b_i, _, a_i) in enumerate(frozen[path])
        ]
        return run.problem.weights[path].scale * torch.stack(terms).sum(0)

    for _ in range(run.steps):
        hidden = x
        for path, weight in run.problem.weights.items():
            hidden = torch.tanh(hidden @ (weight.matrix() + change(path)).T)
        loss = 0.5 * (hidden @ free["head", 0].T - y).square().sum(-1).mean()
        grads = torch.autograd.grad(loss, list(free.values()))
        with torch.no_grad():
            for tensor, grad in zip(free.values(), grads, strict=True):
                tensor -= LR * grad
    sent = {H_OF: free["head", 0].detach()}
    for path in frozen:
        sent[f"{path}.C"] = torch.cat([free[f"s {path}", i] * free[f"H {path}", i] for i in range(h)]).detach()
    return sent, [{path: change(path).detach() for path in frozen}]


@pytest.mark.parametrize("h", [1, 2, 4])
def test_rounds_are_those_of_the_paper(h: int) -> None:
    run, worst = Run(algorithms.get("ravan", heads=h), 0, TwoLayers.make(0, rank=4)), 0.0
    for index in range(4):
        wanted = {c.id: local_training(run, c, h) for c in run.clients}
        n = sum(c.num_examples for c in run.clients)
        mean = {
            path: sum((c.num_examples / n * wanted[c.id][1][0][path] for c in run.clients), torch.zeros(()).double())
            for path in run.problem.weights
        }
        for outcome in run.step(index):
            sent, _ = wanted[outcome.upload.client.id]
            assert set(sent) == set(outcome.upload.params)
            worst = max(worst, *(float((t - outcome.upload.params[name]).abs().max()) for name, t in sent.items()))
        model = run.model(run.clients[0], index + 1)
        worst = max(worst, *(float((t - model[path]).abs().max()) for path, t in mean.items()))
    assert worst < 1e-12


def start(h: int, b: Tensor, width: int = 12) -> tuple[Tensor, dict[str, Tensor]]:
    """A, and the first state."""
    a = torch.randn(b.shape[1], width, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    weights = {"layer": Weight((len(b), width), 2.0, lambda: torch.zeros(len(b), width))}
    state = algorithms.get("ravan", heads=h).init({"layer.A": a, "layer.B": b}, weights, Round(0, 2, 0, 1))
    return a, dict(state.params)


def test_start_by_chance_is_gram_schmidt_over_all_heads() -> None:
    _, state = start(4, torch.zeros(9, 8, dtype=torch.float64))
    left, right = state["layer.L"], state["layer.R"]
    assert [tuple(t.shape) for t in state.values()] == [(9, 8), (8, 2), (8, 12)]
    torch.testing.assert_close(left.mT @ left, torch.eye(8).double())
    torch.testing.assert_close(right @ right.mT, torch.eye(8).double())
    assert not state["layer.C"].any()


@pytest.mark.parametrize(("rank", "asked", "heads"), [(8, 4, 4), (6, 4, 3), (3, 2, 1), (1, 4, 1)])
def test_heads_divide_the_rank(rank: int, asked: int, heads: int) -> None:
    _, state = start(asked, torch.zeros(9, rank, dtype=torch.float64))
    assert state["layer.C"].shape == (rank, rank // heads)


def test_heads_share_the_directions_of_an_adapter_to_start_from() -> None:
    b = torch.randn(9, 6, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    a, state = start(3, b)
    parts = [b_i @ h_i @ a_i for b_i, h_i, a_i in heads(state, "layer", 3)]
    torch.testing.assert_close(torch.stack(parts).sum(0), b @ a)
    norms = [float(part.norm()) for part in parts]
    assert norms == sorted(norms, reverse=True)


@pytest.mark.parametrize("axis", [False, True], ids=["server", "clients"])
def test_view_folds_the_scales(axis: bool) -> None:
    algorithm: Any = algorithms.get("ravan", heads=3)
    problem = TwoLayers.make(seed=0, rank=3)
    state = dict(algorithm.init(problem.params, problem.weights, Round(0, 2, 0, 3)).params)
    draw = torch.Generator().manual_seed(1)
    for path in problem.weights:
        state[f"{path}.C"] = torch.randn(state[f"{path}.C"].shape, generator=draw, dtype=torch.float64)
        state[f"aux:{path}.s"] = torch.randn(3, 1, 1, generator=draw, dtype=torch.float64)
    seen = algorithm.view(Shared(add_client_axis(state, 2) if axis else state), {})
    seen = client_row(seen, 1) if axis else seen
    assert set(seen) == set(problem.params)
    for path in problem.weights:
        s = state[f"aux:{path}.s"].flatten()
        wanted = sum(s_i * b_i @ h_i @ a_i for s_i, (b_i, h_i, a_i) in zip(s, heads(state, path, 3), strict=True))
        torch.testing.assert_close(seen[f"{path}.B"] @ seen[f"{path}.A"], wanted)


@pytest.mark.parametrize("h", [0, -1])
def test_heads_are_at_least_one(h: int) -> None:
    with pytest.raises(ValueError, match=r"heads is a number of heads, at least 1; got"):
        algorithms.get("ravan", heads=h)
