"""Ditto, APFL, L2GD and Fed-MTL: their steps by hand, and their limits as other methods."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Round
from rondo.algorithms.whole.apfl import APFL
from rondo.algorithms.whole.ditto import Ditto
from rondo.algorithms.whole.fed_mtl import FedMTL
from rondo.algorithms.whole.fedavg import FedAvg
from rondo.algorithms.whole.l2gd import L2GD
from rondo.params import Params, add_client_axis, auxiliary, buffer, client_row, pick
from rondo.testing import SgdTrainer, TwoLayers, WholeLayers
from rondo.testing.run import Run, largest_gap

PROBLEMS = {"whole": WholeLayers.make(0), "factors": TwoLayers.make(0), "both": TwoLayers.make(1, beside=True)}
every_problem = pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
LR = 0.1
PARTS = [(0, 1, 2), (1,), (0, 2), (0, 1)]
"""The clients of four rounds."""


def after_rounds(algorithm: Algorithm[Any], problem: Any) -> Run:
    run = Run(algorithm, 0, problem)
    for index, members in enumerate(PARTS):
        run.step(index, [run.clients[k] for k in members])
    return run


def alone(problem: Any, client: Client, rounds: int) -> Params:
    """The client's model after training on its own."""
    params: Params = problem.params
    for index in range(rounds):
        trainer = SgdTrainer((client,), Round(index, 8, 0, 3), problem.loss)
        params = client_row(trainer.fit(add_client_axis(params)).params, 0)
    return params


def model(run: Run, client: Client) -> Params:
    shared = run.shared(client, len(PARTS))
    return run.algorithm.view(shared, run.local(client, shared))


def gradient(problem: Any, client: Client, at: Params) -> dict[str, Tensor]:
    leaves = {n: t.clone().requires_grad_() for n, t in pick(at, ~buffer).items()}
    value = problem.loss(client.id, {**leaves, **{n: t.clone() for n, t in pick(at, buffer).items()}}, {})
    return dict(zip(leaves, torch.autograd.grad(value, list(leaves.values())), strict=True))


@every_problem
@pytest.mark.parametrize("algorithm", [Ditto(0.3), APFL(alpha=0.4), APFL("after", 0.4), APFL(adaptive=True)], ids=str)
def test_global_model_is_that_of_fedavg(algorithm: Algorithm[Any], problem: Any) -> None:
    run, plain = after_rounds(algorithm, problem), after_rounds(FedAvg(), problem)
    assert largest_gap(run.state.params, plain.state.params) == 0


@every_problem
@pytest.mark.parametrize(
    "algorithm", [Ditto(0.0), APFL(alpha=1.0), APFL("after", 1.0), L2GD(0.0, 0.5), FedMTL(0.0)], ids=str
)
def test_limit_is_local_training(algorithm: Algorithm[Any], problem: Any) -> None:
    run = after_rounds(algorithm, problem)
    for k, client in enumerate(run.clients):
        rounds = sum(k in members for members in PARTS)
        if isinstance(algorithm, L2GD):  # a round may have several local iterations
            rounds = round_iterations(algorithm, k)
        assert largest_gap(model(run, client), alone(problem, client, rounds)) < 1e-12


def round_iterations(algorithm: L2GD, member: int) -> int:
    """The local iterations of a client over all rounds, with the coin tossed again."""
    total = 0
    for index, members in enumerate(PARTS):
        if member in members:
            total += tosses(algorithm, index)[1]
    return total


def tosses(algorithm: L2GD, index: int) -> tuple[int, int]:
    """The pulls and the local iterations of a round, written as a chain of coins."""
    coin = Round(index, 8, 0, 3).generator("l2gd")
    lengths = [1, 1]
    for k, chance in enumerate((algorithm.p, 1 - algorithm.p)):
        while float(torch.rand((), generator=coin, dtype=torch.float64)) < chance:
            lengths[k] += 1
    return lengths[0], lengths[1]


@every_problem
@pytest.mark.parametrize("algorithm", [APFL(alpha=0.0), APFL("after", 0.0)], ids=str)
def test_apfl_without_own_share_is_fedavg(algorithm: APFL, problem: Any) -> None:
    run, plain = Run(algorithm, 0, problem), Run(FedAvg(), 0, problem)
    for index in range(3):
        own, common = run.step(index), plain.step(index)
    for one, other in zip(own, common, strict=True):
        # The model just trained: w_k itself.
        assert largest_gap(pick(one.after, ~buffer), pick(other.after, ~buffer)) < 1e-12


@every_problem
@pytest.mark.parametrize("make", [Ditto, FedMTL])
def test_large_lam_holds_models_at_the_shared_one(make: Any, problem: Any) -> None:
    run = Run(make(1e8), 0, problem)
    shared = run.shared(run.clients[0], 0)
    trainer = SgdTrainer(run.clients, run.round(0), problem.loss, lr=1e-8)
    batched = type(shared)(add_client_axis(shared.params, 3))
    far = {n: t if buffer(n) else t + 1.0 for n, t in batched.params.items()}
    kept = run.algorithm.adapt(batched, far, trainer)
    assert largest_gap(pick(kept, ~buffer), pick(batched.params, ~buffer)) < 1e-6


@every_problem
@pytest.mark.parametrize("make", [Ditto, FedMTL])
def test_proximal_step_equals_a_hand_written_one(make: Any, problem: Any) -> None:
    run = Run(make(0.5), 0, problem)
    run.step(0)
    run.step(1, run.clients[1:])
    client = run.clients[0]
    w, v = run.state.params, dict(run.locals[client.id])
    for _ in range(run.steps):
        g = gradient(problem, client, v)
        v = {n: t if buffer(n) else t - LR * (g[n] + 0.5 * (t - w[n])) for n, t in v.items()}
    run.step(2, [client])
    assert largest_gap(pick(run.locals[client.id], ~buffer), pick(v, ~buffer)) < 1e-12


def test_ditto_trains_personal_models_for_their_own_epochs() -> None:
    run = Run(Ditto(0.5, personal_epochs=1), 0)
    client = run.clients[0]
    w = run.state.params
    g = gradient(run.problem, client, w)
    (outcome,) = run.train([client], 0)
    assert largest_gap(outcome.local, {n: t - LR * g[n] for n, t in w.items()}) < 1e-12


@every_problem
def test_apfl_step_equals_a_hand_written_one(problem: Any) -> None:
    """Mixing during training, with a share that adapts and is used within 0 and 1."""
    run = Run(APFL(alpha=0.3, adaptive=True), 0, problem)
    run.step(0)
    client = run.clients[1]
    w, v = dict(run.state.params), dict(pick(run.locals[client.id], ~auxiliary))
    a = float(run.locals[client.id]["aux:alpha"])
    assert a != 0.3
    for _ in range(run.steps):
        used = min(max(a, 0.0), 1.0)
        mix = {n: v[n] if buffer(n) else used * v[n] + (1 - used) * t for n, t in w.items()}
        at_w, at_mix = gradient(problem, client, w), gradient(problem, client, mix)
        slope = sum(float(((v[n] - w[n]) * g).sum()) for n, g in at_mix.items())
        w = {n: t if buffer(n) else t - LR * at_w[n] for n, t in w.items()}
        v = {n: t if buffer(n) else t - LR * used * at_mix[n] for n, t in v.items()}
        a = a - LR * slope
    (outcome,) = run.train([client], 1)
    assert largest_gap(pick(outcome.upload.params, ~buffer), pick(w, ~buffer)) < 1e-12
    assert largest_gap(pick(outcome.local, ~(buffer | auxiliary)), pick(v, ~buffer)) < 1e-12
    assert float(outcome.local["aux:alpha"]) == pytest.approx(min(max(a, 0.0), 1.0), abs=1e-12)


def test_apfl_mixes_after_training() -> None:
    problem = PROBLEMS["whole"]
    run = Run(APFL("after", 0.3), 0, problem)
    client = run.clients[0]
    run.step(0)
    start = run.locals[client.id]
    trainer = SgdTrainer((client,), run.round(1), problem.loss)
    trained = client_row(trainer.fit(add_client_axis(start)).params, 0)
    (outcome,) = run.train([client], 1)
    w = outcome.upload.params
    expected = {n: t if buffer(n) else 0.3 * t + 0.7 * w[n] for n, t in trained.items()}
    assert largest_gap(outcome.local, expected) < 1e-12


@every_problem
def test_apfl_after_training_fits_a_new_clients_model_likewise(problem: Any) -> None:
    """With the shared model as it is, in which the new client has no part."""
    algorithm = APFL("after", 0.3)
    run = after_rounds(algorithm, problem)
    client = run.clients[0]
    shared, start = run.shared(client, 4), run.locals[client.id]
    batched = type(shared)(add_client_axis(shared.params))
    trainer = SgdTrainer((client,), run.round(4), problem.loss)
    fitted = client_row(algorithm.adapt(batched, add_client_axis(start), trainer), 0)
    trainer = SgdTrainer((client,), run.round(4), problem.loss)
    trained = client_row(trainer.fit(add_client_axis(start)).params, 0)
    w = shared.params
    expected = {n: t if buffer(n) else 0.3 * t + 0.7 * w[n] for n, t in trained.items()}
    assert largest_gap(fitted, expected) < 1e-12


def test_adaptive_share_stays_between_zero_and_one() -> None:
    run = Run(APFL(alpha=0.9, adaptive=True), 0, PROBLEMS["whole"])
    for index in range(12):
        run.step(index)
        shares = [float(kept["aux:alpha"]) for kept in run.locals.values()]
        assert [share for share in shares if not 0 <= share <= 1] == []
    assert {0.0, 1.0} & set(shares)


@every_problem
def test_l2gd_round_equals_a_hand_written_one(problem: Any) -> None:
    algorithm = L2GD(lam=2.0, p=0.6)
    run = Run(algorithm, 0, problem)
    run.step(0)
    run.step(1)
    client = run.clients[2]
    mean, x = run.state.params, dict(run.locals[client.id])
    pulls, iterations = tosses(algorithm, 2)
    theta = 0.4 / 0.6 * 2.0 * LR
    for _ in range(pulls):
        x = {n: t if buffer(n) else t - theta * (t - mean[n]) for n, t in x.items()}
    for _ in range(iterations * run.steps):
        g = gradient(problem, client, x)
        x = {n: t if buffer(n) else t - LR * g[n] for n, t in x.items()}
    (outcome,) = run.train([client], 2)
    assert largest_gap(pick(outcome.upload.params, ~buffer), pick(x, ~buffer)) < 1e-12


def test_l2gd_runs_have_the_coins_lengths() -> None:
    """1 / (1 - p) pulls and 1 / p local iterations on average."""
    lengths = [tosses(L2GD(p=0.75), index) for index in range(4000)]
    pulls, iterations = (sum(column) / len(lengths) for column in zip(*lengths, strict=True))
    assert pulls == pytest.approx(4, rel=0.1)
    assert iterations == pytest.approx(4 / 3, rel=0.05)


@pytest.mark.parametrize("lam", [300.0, 1e9])
def test_l2gd_pull_never_overshoots(lam: float) -> None:
    """It leaves the mean as it is, and no model is pulled beyond it. Uncapped, 3.3 times the way: a larger factor alone
    would cancel to zeros, which are all equal."""
    run = Run(L2GD(lam=lam), 0, PROBLEMS["whole"])
    run.step(0)
    before = run.state.params
    run.steps = 0
    run.step(1)
    mean = run.state.params
    assert largest_gap(pick(mean, ~buffer), pick(before, ~buffer)) < 1e-12
    gaps = {c: largest_gap(pick(kept, ~buffer), pick(mean, ~buffer)) for c, kept in run.locals.items()}
    assert {c: gap for c, gap in gaps.items() if not gap < 1e-12} == {}


@pytest.mark.parametrize(
    "algorithm", [Ditto(), APFL(), APFL("after"), APFL(adaptive=True), L2GD(p=0.5), FedMTL()], ids=str
)
def test_personal_statistics_are_the_clients_own(algorithm: Algorithm[Any]) -> None:
    """They follow the personal model's passes and are never mixed with the shared ones."""
    run = after_rounds(algorithm, PROBLEMS["whole"])
    name = "buffer:first.mean"
    models = [model(run, c)[name] for c in run.clients]
    torch.testing.assert_close(models, [run.locals[c.id][name] for c in run.clients], rtol=0, atol=0)
    assert not torch.equal(models[0], models[1])
    assert [m for m in models if not m.abs().max() > 0] == []


@pytest.mark.parametrize("algorithm", [Ditto(), APFL(), APFL("after"), APFL(adaptive=True), L2GD(), FedMTL()], ids=str)
def test_new_client_fits_a_model_of_its_own(algorithm: Algorithm[Any]) -> None:
    run = after_rounds(algorithm, PROBLEMS["whole"])
    client = run.clients[0]
    shared = run.shared(client, 4)
    start = algorithm.local_init(shared, client)
    trainer = SgdTrainer((client,), run.round(4), run.problem.loss)
    batched = type(shared)(add_client_axis(shared.params))
    fitted = client_row(algorithm.adapt(batched, add_client_axis(start), trainer), 0)
    before, after = (
        float(run.problem.loss(client.id, {n: t.clone() for n, t in algorithm.view(shared, local).items()}, {}))
        for local in (start, fitted)
    )
    assert fitted.keys() == start.keys()
    assert after < before


@pytest.mark.parametrize(
    ("make", "fields", "named"),
    [
        (Ditto, {"lam": -1.0}, "lam"),
        (Ditto, {"personal_epochs": -1}, "personal_epochs"),
        (FedMTL, {"lam": float("nan")}, "lam"),
        (L2GD, {"lam": -1.0}, "lam"),
        (L2GD, {"p": 0.0}, "p is"),
        (L2GD, {"p": 1.0}, "p is"),
        (APFL, {"alpha": 1.1}, "alpha"),
        (APFL, {"mixing": "before"}, "mixing"),
        (APFL, {"mixing": "after", "adaptive": True}, "adaptive"),
    ],
)
def test_personal_method_names_a_field_out_of_range(make: Any, fields: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        make(**fields)
