"""Methods that share a part of the model and keep another do as their papers say, and reduce to one another."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
import torch

from rondo.algorithm import Algorithm
from rondo.algorithms.factors.fedit import FedIT
from rondo.algorithms.whole.ditto import Ditto
from rondo.algorithms.whole.fed_mtl import FedMTL
from rondo.algorithms.whole.fedavg import FedAvg
from rondo.algorithms.whole.fedper import FedPer
from rondo.algorithms.whole.fedprox import FedProx
from rondo.algorithms.whole.fedrep import FedRep
from rondo.algorithms.whole.lg_fedavg import LGFedAvg
from rondo.algorithms.whole.local import LocalTraining
from rondo.algorithms.wrappers.local import Local, SharedHead
from rondo.engine.wire import serialization
from rondo.params import Params, add_client_axis, buffer, client_row, head, pick, role
from rondo.testing import SgdTrainer, TwoLayers, WholeLayers
from rondo.testing.run import Run
from rondo.testing.testbed import Testbed

PROBLEMS = [WholeLayers.make(0), TwoLayers.make(0, beside=True)]
on_each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=["whole", "factors beside whole"])


def assert_same_runs(one: Algorithm[Any], other: Algorithm[Any], problem: Testbed, rounds: int = 3) -> None:
    """Uploads, and the models that clients use, are equal bit for bit."""
    runs = [Run(algorithm, 0, problem) for algorithm in (one, other)]
    for index in range(rounds):
        first, second = ([dict(o.upload.params) for o in run.step(index)] for run in runs)
        assert serialization.same(first, second)
        for client in runs[0].clients:
            assert serialization.same(*(run.model(client, index + 1) for run in runs))


def test_fedavg_of_factors_alone_is_fedit() -> None:
    assert_same_runs(FedAvg(), FedIT(), TwoLayers.make(0))


@on_each_problem
def test_fedprox_without_mu_is_fedavg(problem: Testbed) -> None:
    assert_same_runs(FedProx(mu=0.0), FedAvg(), problem)


@pytest.mark.parametrize("algorithm", [FedProx(mu=3.0), Ditto(3.0), FedMTL(3.0)], ids=str)
def test_reported_loss_has_no_statistics_in_it(algorithm: Algorithm[Any]) -> None:
    """They move without a gradient, so a norm over them would show in the loss alone."""
    run = Run(algorithm, 0, PROBLEMS[0])
    objectives: list[Any] = []

    class Noting(SgdTrainer):
        def fit(self, params: Params, **options: Any) -> Any:
            objectives.append(options.get("objective"))
            return super().fit(params, **options)

    shared = run.shared(run.clients[0], 0)
    batched = type(shared)(add_client_axis(shared.params))
    trainer = Noting(run.clients[:1], run.round(0), PROBLEMS[0].loss)
    start = add_client_axis(algorithm.local_init(shared, run.clients[0]))
    algorithm.client_update(batched, start, trainer)
    moved = {n: t + 1.0 if buffer(n) else t for n, t in batched.params.items()}
    assert list(filter(buffer, moved)) != []
    assert float(objectives[-1](moved, lambda _: torch.zeros(1))) == 0.0


@on_each_problem
@pytest.mark.parametrize("head_epochs", [0, 10])
def test_fedrep_with_a_shared_head_is_fedavg(problem: Testbed, head_epochs: int) -> None:
    """A shared head belongs to the representation, so there is no head phase."""
    assert_same_runs(SharedHead(FedRep(head_epochs, body_epochs=3)), FedAvg(), problem)


@on_each_problem
def test_fedper_with_a_shared_head_is_fedavg(problem: Testbed) -> None:
    assert_same_runs(SharedHead(FedPer()), FedAvg(), problem)


@on_each_problem
def test_fedper_is_fedavg_with_a_local_head(problem: Testbed) -> None:
    assert_same_runs(FedPer(), Local(FedAvg()), problem)


@on_each_problem
def test_local_with_a_shared_head_is_lg_fedavg(problem: Testbed) -> None:
    assert_same_runs(SharedHead(LocalTraining()), LGFedAvg(), problem)


@pytest.mark.parametrize("inner", [FedRep(), FedPer(), LocalTraining()], ids=lambda a: type(a).__name__)
def test_shared_head_is_personal_only_with_a_body_kept(inner: Algorithm[Any]) -> None:
    assert SharedHead(inner).traits.personal is isinstance(inner, LocalTraining)
    assert not SharedHead(inner).traits.keeps("head:out.weight")


def test_fedprox_steps_along_the_proximal_gradient() -> None:
    """The second step is FedAvg's from the same point, less lr * mu times the way that the first one went."""
    problem, mu, lr = WholeLayers.make(0), 0.7, 0.1
    trainer = Run(FedAvg(), 0, problem).clients[:1], Run(FedAvg(), 0, problem).round(0)
    start = add_client_axis(problem.params)

    def trained(algorithm: Algorithm[Any], params: Params, steps: int) -> dict[str, torch.Tensor]:
        shared = Run(algorithm, 0, problem).shared(problem.clients[0], 0)
        one = SgdTrainer(*trainer, problem.loss, steps=steps, lr=lr)
        (upload,), _ = algorithm.client_update(type(shared)(params), {}, one)
        return add_client_axis(upload.params)

    first = trained(FedAvg(), start, 1)
    second = trained(FedAvg(), first, 1)
    found = trained(FedProx(mu=mu), start, 2)
    for name in pick(found, ~buffer):
        expected = second[name] - lr * mu * (first[name] - start[name])
        torch.testing.assert_close(found[name], expected, rtol=0, atol=1e-14)


def fits(algorithm: Algorithm[Any], problem: Testbed) -> tuple[Params, list[Params], Params, Params]:
    """One client's first round: its tensors at the start, after each fit, what it sends and what it keeps."""
    run = Run(algorithm, 0, problem)
    client = run.clients[0]
    shared = run.shared(client, 0)
    trainer = SgdTrainer((client,), run.round(0), problem.loss)
    local = add_client_axis(run.local(client, shared))
    received = type(shared)(add_client_axis(shared.params))
    (upload,), kept = algorithm.client_update(received, local, trainer)
    return received.params, trainer.fits, upload.params, client_row(kept, 0)


def moved(before: Params, after: Params) -> set[str]:
    return {n for n, t in after.items() if not torch.equal(t, before[n])}


@on_each_problem
def test_fedrep_trains_the_head_then_the_body(problem: Testbed) -> None:
    start, (first, second), sent, kept = fits(FedRep(4, 2), problem)
    assert moved(start, first) == set(pick(start, head))
    assert moved(first, second) == set(pick(start, ~head))
    assert sent.keys() == pick(start, ~head).keys()
    assert serialization.same(kept, client_row(pick(first, head), 0))


def test_fedrep_head_phase_lasts_its_epochs() -> None:
    """An epoch is one step of this trainer, and so is an update."""
    problem = WholeLayers.make(0)
    client = problem.clients[:1]
    trainer = SgdTrainer(client, Run(FedRep(), 0, problem).round(0), problem.loss)
    expected = trainer.fit(add_client_axis(problem.params), train=head, steps=7).params
    for unit in ("epochs", "updates"):
        _, (first, _), _, _ = fits(FedRep(7, 2, unit), problem)  # type: ignore[arg-type]
        assert serialization.same(dict(first), dict(expected))


@pytest.mark.parametrize("algorithm", [FedRep(2, 1), FedPer()], ids=lambda a: type(a).__name__)
@on_each_problem
def test_head_of_an_absent_client_stays(algorithm: Algorithm[Any], problem: Testbed) -> None:
    run = Run(algorithm, 0, problem)
    run.step(0)
    before = run.locals["client-1"]
    run.step(1, [c for c in run.clients if c.id != "client-1"])
    assert serialization.same(run.locals["client-1"], before)
    heads = [kept["head:out.weight"] for kept in run.locals.values()]
    assert [(one, other) for one, other in combinations(heads, 2) if torch.equal(one, other)] == []
    assert [o for o in run.step(2) if pick(o.upload.params, head)] == []


@on_each_problem
def test_lg_fedavg_sends_the_head_alone(problem: Testbed) -> None:
    run = Run(LGFedAvg(), 0, problem)
    for index in range(2):
        for outcome in run.step(index):
            assert outcome.upload.params.keys() == pick(problem.params, head).keys()
            assert outcome.local.keys() == pick(problem.params, ~head).keys()
    assert serialization.same(pick(run.state.params, ~head), pick(problem.params, ~head))


@on_each_problem
def test_local_trains_each_client_alone(problem: Testbed) -> None:
    """Three rounds are one training of three times as many steps; the server never changes."""
    run, alone = Run(LocalTraining(), 0, problem), {}
    start = run.state
    for c in run.clients:
        trainer = SgdTrainer((c,), run.round(0), problem.loss, steps=9)
        alone[c.id] = client_row(trainer.fit(add_client_axis(problem.params)).params, 0)
    for index in range(3):
        assert [o for o in run.step(index) if o.upload.params] == []
    assert serialization.same(run.state, start)
    assert serialization.same(run.locals, alone)


def adapted(algorithm: Algorithm[Any], problem: Testbed) -> tuple[Params, Params, Params]:
    """What a new client received, and its tensors before and after it adapts them."""
    run = Run(algorithm, 0, problem)
    run.step(0)
    client = problem.clients[-1]
    shared = run.shared(client, 1)
    start = algorithm.local_init(shared, client)
    params = add_client_axis({n: t.clone() for n, t in shared.params.items()})
    trainer = SgdTrainer((client,), run.round(1), problem.loss)
    found = algorithm.adapt(type(shared)(params, shared.base), add_client_axis(start), trainer)
    assert serialization.same(client_row(params, 0), dict(shared.params)), "adapting changed what is shared"
    return shared.params, start, client_row(found, 0)


ADAPTING = {
    "fedavg": (FedAvg(), set()),
    "fedrep": (FedRep(2, 1), {"head"}),
    "lg-fedavg": (LGFedAvg(), {"body", "buffer", "down", "up"}),
    "local": (LocalTraining(), {"head", "body", "buffer", "down", "up"}),
    "fedavg, local head": (Local(FedAvg()), {"head"}),
    "fedavg, local statistics": (Local(FedAvg(), buffer), {"buffer"}),
    "fedavg, both local": (Local(FedAvg(), head | buffer), {"head", "buffer"}),
    "lg-fedavg, local statistics": (Local(LGFedAvg(), buffer), {"body", "buffer", "down", "up"}),
    "fedrep, local statistics": (Local(FedRep(2, 1), buffer), {"head", "buffer"}),
    "fedrep, shared head": (SharedHead(FedRep(2, 1)), set()),
}


@on_each_problem
@pytest.mark.parametrize("name", ADAPTING)
def test_new_client_adapts_its_own_tensors(name: str, problem: Testbed) -> None:
    algorithm, roles = ADAPTING[name]
    shared, start, found = adapted(algorithm, problem)
    assert found.keys() == start.keys()
    present = {role(n).value for n in shared}
    assert {role(n).value for n in found} == roles & present  # type: ignore[operator]
    assert moved(start, found) == set(start)


def test_adapting_freezes_everything_shared() -> None:
    """FedRep's new head is fitted on the server's representation."""
    problem = WholeLayers.make(0)
    shared, start, found = adapted(FedRep(2, 1), problem)
    trainer = SgdTrainer(problem.clients[-1:], Run(FedRep(), 0, problem).round(1), problem.loss)
    expected = trainer.fit(add_client_axis({**shared, **start}), train=head).params
    torch.testing.assert_close(dict(found), client_row(pick(expected, head), 0), rtol=0, atol=1e-15)


@pytest.mark.parametrize("algorithm", [FedAvg(), FedRep(3, 2), LGFedAvg()], ids=lambda a: type(a).__name__)
def test_local_statistics_move_and_stay(algorithm: Algorithm[Any]) -> None:
    problem = WholeLayers.make(0)
    run = Run(Local(algorithm, buffer), 0, problem)
    outcomes = run.step(0)
    means = [o.local["buffer:first.mean"] for o in outcomes]
    assert [m for m in means if not bool(m.abs().sum() > 0)] == []
    assert not torch.equal(means[0], means[1])
    assert [o for o in outcomes if pick(o.upload.params, buffer)] == []
    assert not run.state.start["buffer:first.mean"].any()


def test_local_statistics_move_in_both_phases_of_fedrep() -> None:
    """They belong to the client, so the head phase goes through them too."""
    problem = WholeLayers.make(0)
    counts = {}
    for epochs in (0, 5):
        run = Run(Local(FedRep(epochs, 1), buffer), 0, problem)
        counts[epochs] = float(run.train(run.clients[:1], 0)[0].local["buffer:first.mean"].norm())
    assert counts[5] > 2 * counts[0]


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: FedProx(-0.1), "mu"),
        (lambda: FedProx(float("nan")), "mu"),
        (lambda: FedProx(float("inf")), "mu"),
        (lambda: FedRep(head_epochs=-1), "head_epochs"),
        (lambda: FedRep(body_epochs=0), "body_epochs"),
        (lambda: FedRep(unit="steps"), "unit"),  # type: ignore[arg-type]
    ],
)
def test_field_out_of_range_is_named(make: Any, field: str) -> None:
    with pytest.raises(ValueError, match=field):
        make()
