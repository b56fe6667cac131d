"""SCAFFOLD against hand-written rounds, and its identities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from rondo.algorithm import Client, Fit, Mean, Round
from rondo.algorithms.whole.fedavg import FedAvg
from rondo.algorithms.whole.scaffold import Scaffold
from rondo.params import AUXILIARY_PREFIX, Params, add_client_axis, auxiliary, buffer, pick, sub
from rondo.testing import SgdTrainer, TwoLayers, WholeLayers
from rondo.testing.run import Run, largest_gap

PROBLEMS = {"whole": WholeLayers.make(0), "factors": TwoLayers.make(0), "both": TwoLayers.make(1, beside=True)}
every_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
every_option = pytest.mark.parametrize("option", ["I", "II"])
LR = 0.1


def controls(params: Params) -> dict[str, torch.Tensor]:
    return {n.removeprefix(AUXILIARY_PREFIX): t for n, t in pick(params, auxiliary).items()}


def gradient(run: Run, client: Client, at: Params) -> dict[str, torch.Tensor]:
    """The client's gradient, by autograd on the problem itself."""
    leaves = {n: t.clone().requires_grad_() for n, t in pick(at, ~buffer).items()}
    statistics = {n: t.clone() for n, t in pick(at, buffer).items()}
    value = run.problem.loss(client.id, {**leaves, **statistics}, {})
    return dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True))


@every_problem
@every_option
def test_first_round_is_that_of_fedavg(option: Any, problem: Any) -> None:
    """All control variates are zero, and each client counts the same."""
    run, plain = Run(Scaffold(option), 0, problem), Run(FedAvg(), 0, problem)
    run.step(0)
    outcomes = [plain.train([c], 0)[0] for c in plain.clients]
    plain.finish([replace(o, upload=replace(o.upload, weight=1.0)) for o in outcomes], 0)
    model = pick(run.state.params, ~auxiliary)
    assert largest_gap(model, plain.state.params) == 0


@every_problem
@every_option
def test_round_equals_a_hand_written_one(option: Any, problem: Any) -> None:
    """The third round, with server_lr other than 1."""
    run = Run(Scaffold(option, server_lr=0.7), 0, problem)
    run.step(0)
    run.step(1, run.clients[:2])
    x, c = pick(run.state.params, ~auxiliary), controls(run.state.params)
    moves: list[Params] = []
    new: dict[str, Params] = {}
    for client in run.clients[:2]:
        own, y = controls(run.locals[client.id]), pick(x, ~buffer)
        for _ in range(run.steps):
            g = gradient(run, client, {**x, **y})
            y = {n: t - LR * (g[n] - own[n] + c[n]) for n, t in y.items()}
        moves.append(sub(y, x))
        if option == "I":
            new[client.id] = gradient(run, client, x)
        else:
            new[client.id] = {n: own[n] - c[n] + (x[n] - y[n]) / (run.steps * LR) for n in y}
    changes = [sub(new[k], controls(run.locals[k])) for k in new]
    run.step(2, run.clients[:2])
    for name in moves[0]:
        expected = x[name] + 0.7 * (moves[0][name] + moves[1][name]) / 2
        torch.testing.assert_close(run.state.params[name], expected, rtol=0, atol=1e-12)
        expected = c[name] + (changes[0][name] + changes[1][name]) / 3
        torch.testing.assert_close(controls(run.state.params)[name], expected, rtol=0, atol=1e-12)
    for client_id, expected in new.items():
        assert largest_gap(controls(run.locals[client_id]), expected) < 1e-12


@every_problem
@every_option
def test_server_control_is_the_mean_of_the_clients(option: Any, problem: Any) -> None:
    """sum of c_k = N c from zero, whoever takes part."""
    run = Run(Scaffold(option), 0, problem)
    for index, members in enumerate([(0, 1, 2), (1,), (0, 2), (2,), (0, 1)]):
        run.step(index, [run.clients[k] for k in members])
        c = controls(run.state.params)
        for name, tensor in c.items():
            total = sum(controls(kept)[name] for kept in run.locals.values())
            torch.testing.assert_close(total, 3 * tensor, rtol=0, atol=1e-12)
    assert max(float(t.abs().max()) for t in c.values()) > 1e-3


@every_problem
@every_option
def test_single_client_is_never_corrected(option: Any, problem: Any) -> None:
    """c_1 = c, so the model is that of training alone."""
    alone = replace(problem, clients=problem.clients[:1])
    run, plain = Run(Scaffold(option), 0, alone), Run(FedAvg(), 0, alone)
    for index in range(4):
        run.step(index)
        plain.step(index)
        assert largest_gap(controls(run.state.params), controls(run.locals[alone.clients[0].id])) < 1e-12
    assert largest_gap(pick(run.state.params, ~auxiliary), plain.state.params) < 1e-12


@every_option
def test_statistics_have_no_control_and_no_server_step(option: Any) -> None:
    run = Run(Scaffold(option, server_lr=0.5), 0, PROBLEMS["whole"])
    outcomes = run.step(0)
    assert [name for name in controls(run.state.params) if buffer(name)] == []
    for name in pick(run.state.params, buffer):
        mean = sum(o.upload.params[name] for o in outcomes) / 3
        torch.testing.assert_close(run.state.params[name], mean, rtol=0, atol=1e-12)


class Watched(SgdTrainer):
    """Notes the loss that a fit reports."""

    reported: list[torch.Tensor]

    def fit(self, *arguments: Any, **options: Any) -> Fit:
        fit = super().fit(*arguments, **options)
        self.reported = [*getattr(self, "reported", ()), fit.loss]
        return fit


@every_option
def test_reported_loss_is_without_the_correction(option: Any) -> None:
    """The correction's inner product may be large and negative, and says nothing of the model."""
    problem = WholeLayers.make(0)
    run, client = Run(Scaffold(option), 0, problem), problem.clients[0]
    large = {n: t - 50.0 for n, t in pick(run.state.params, auxiliary).items()}
    run.state = replace(run.state, params={**run.state.params, **large})
    shared = run.shared(client, 0)
    expected = problem.loss(client.id, {n: t.clone() for n, t in pick(shared.params, ~auxiliary).items()}, {})
    trainer = Watched((client,), run.round(0), problem.loss, {}, 1)
    batched = replace(shared, params=add_client_axis(shared.params))
    Scaffold(option).client_update(batched, add_client_axis(run.local(client, shared)), trainer)
    assert list(map(float, trainer.reported)) == pytest.approx([float(expected)] * len(trainer.reported), rel=1e-9)


def test_client_without_a_step_keeps_its_control() -> None:
    run = Run(Scaffold("II"), 0, PROBLEMS["whole"])
    run.step(0)
    before, run.steps = run.locals, 0
    run.step(1)
    assert {k: gap for k in before if (gap := largest_gap(before[k], run.locals[k]))} == {}


def test_option_two_needs_plain_sgd() -> None:
    assert Scaffold("II").traits.plain_sgd
    assert not Scaffold("I").traits.plain_sgd


def test_server_counts_all_clients() -> None:
    """One upload of a population of 4 moves c by a quarter of its change."""
    algorithm, params = Scaffold(), {"w": torch.zeros(2)}
    state = algorithm.init(params, {}, Round(0, 1, 0, 4))
    mean = Mean({"w": torch.ones(2).double(), "aux:w": torch.ones(2).double()}, 1.0, 1)
    after = algorithm.finish(state, mean, Round(0, 1, 0, 4))
    assert after.params["aux:w"].tolist() == [0.25, 0.25]
    assert after.params["w"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("fields", [{"option": "III"}, {"server_lr": 0.0}, {"server_lr": float("nan")}], ids=str)
def test_scaffold_names_a_field_out_of_range(fields: Any) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        Scaffold(**fields)
