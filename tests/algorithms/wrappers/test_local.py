"""A head that stays with its client: trained, kept, never uploaded, never seen by the wrapped algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch

from rondo import algorithms
from rondo.algorithm import Algorithm, Client, Round, ServerState, Shared, Trainer, Traits, Uploads, Weight
from rondo.algorithms.wrappers.local import Local
from rondo.params import AUXILIARY_PREFIX, Params, add_client_axis, client_row, down, head, pick, up
from rondo.testing import SgdTrainer, TwoLayers

every_algorithm = pytest.mark.parametrize("name", algorithms.names())
HEAD = "head:out.weight"


class Federation:
    """Rounds of one algorithm on the small problem; ``sent`` holds the last round's uploads."""

    def __init__(self, algorithm: Algorithm[Any]) -> None:
        self.algorithm, self.problem = algorithm, TwoLayers.make(0)
        self.state = algorithm.init(self.problem.params, self.problem.weights, Round(0, 4, 0, 3))
        self.locals: dict[str, Params] = {}

    def step(self, index: int, select: Callable[[Client], bool] = lambda c: True) -> None:
        round, self.sent = Round(index, 4, 0, 3), []
        for client in filter(select, self.problem.clients):
            shared = self.algorithm.broadcast(self.state, client, round)
            local = self.locals.get(client.id) or self.algorithm.local_init(shared, client)
            trainer = SgdTrainer((client,), round, self.problem.loss, shared.base)
            batched = Shared(add_client_axis(shared.params), shared.base)
            uploads, kept = self.algorithm.client_update(batched, add_client_axis(local), trainer)
            self.locals[client.id] = client_row(kept, 0)
            self.sent.extend(uploads)
        self.state = self.algorithm.aggregate(self.state, self.sent, round)


@every_algorithm
def test_every_client_trains_its_head_and_uploads_none(name: str) -> None:
    run = Federation(Local(algorithms.get(name)))
    start = run.problem.params[HEAD]
    run.step(0)
    heads = [kept[HEAD] for kept in run.locals.values()]
    for k, one in enumerate(heads):
        assert not torch.equal(one, start)
        assert [other for other in heads[:k] if torch.equal(one, other)] == []
    assert [u for u in run.sent if pick(u.params, head)] == []


class BodyOnly(Algorithm[ServerState]):
    """Trains the factors and names no head."""

    traits = Traits(exact=False)

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerState:
        return ServerState(params)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fit = trainer.fit(shared.params, train=down | up)
        return trainer.upload(fit.params), local


def test_head_is_trained_when_the_algorithm_names_none() -> None:
    run = Federation(Local(BodyOnly()))
    run.step(0)
    assert {n: kept for n, kept in run.locals.items() if torch.equal(kept[HEAD], run.problem.params[HEAD])} == {}


@pytest.mark.parametrize("index", [0, 1])
def test_lora_a2_probing_epoch_leaves_the_head(index: int) -> None:
    """The upload and the head are those of a client whose head is shared, which starts the training from the received
    one."""
    problem = TwoLayers.make(0)
    client = Client("client-0", 4, 1)
    outcomes = []
    for wrapped in (False, True):
        inner = algorithms.get("lora-a2")
        algorithm: Algorithm[Any] = Local(inner) if wrapped else inner
        round = Round(index, 4, 0, 3)
        given = {n: torch.ones_like(t) if n.endswith(".B") else t for n, t in problem.params.items()}
        shared = algorithm.broadcast(algorithm.init(given, problem.weights, round), client, round)
        local = algorithm.local_init(shared, client)
        trainer = SgdTrainer((client,), round, problem.loss)
        batched = Shared(add_client_axis(shared.params))
        (upload,), kept = algorithm.client_update(batched, add_client_axis(local), trainer)
        assert len(trainer.fits) == 2
        outcomes.append({**upload.params, **client_row(kept, 0)})
    shared_head, local_head = outcomes
    assert shared_head.keys() == local_head.keys()
    for name, tensor in shared_head.items():
        torch.testing.assert_close(local_head[name], tensor, rtol=0, atol=1e-14)


@every_algorithm
def test_head_continues_where_its_client_left_it(name: str) -> None:
    run = Federation(Local(algorithms.get(name)))
    run.step(0)
    before = {c: kept[HEAD] for c, kept in run.locals.items()}
    run.step(1, lambda c: c.id == "client-1")
    moved = {c: float((kept[HEAD] - before[c]).norm()) for c, kept in run.locals.items()}
    assert moved["client-0"] == moved["client-2"] == 0
    from_start = float((run.locals["client-1"][HEAD] - run.problem.params[HEAD]).norm())
    assert 0 < moved["client-1"] < from_start


@every_algorithm
def test_new_client_starts_from_the_common_head(name: str) -> None:
    run = Federation(Local(algorithms.get(name)))
    run.step(0)
    newcomer = Client("new", 5)
    shared = run.algorithm.broadcast(run.state, newcomer, Round(1, 4, 0, 4))
    kept = run.algorithm.local_init(shared, newcomer)
    assert torch.equal(kept[HEAD], run.problem.params[HEAD])
    assert torch.equal(run.algorithm.view(shared, kept)[HEAD], run.problem.params[HEAD])


@every_algorithm
def test_network_sees_the_clients_own_head(name: str) -> None:
    run = Federation(Local(algorithms.get(name)))
    run.step(0)
    for client in run.problem.clients:
        shared = run.algorithm.broadcast(run.state, client, Round(1, 4, 0, 3))
        assert torch.equal(run.algorithm.view(shared, run.locals[client.id])[HEAD], run.locals[client.id][HEAD])


TRAIN_A_SHARED_HEAD_OTHERWISE = (
    *("pfedloru", "pfedlora"),  # they train twice per round, and a shared head only the second time
    *("fedprox", "scaffold", "per-fedavg"),  # they pull, correct or look ahead with a shared head as well
    *("ditto", "apfl", "fed-mtl"),  # so they do with a personal model
)


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in algorithms.names()
        if n not in TRAIN_A_SHARED_HEAD_OTHERWISE and not algorithms.entry(n).traits.keeps("head:")
    ],
)
def test_first_round_equals_that_of_a_shared_head(name: str) -> None:
    """The policies differ only once heads are averaged, so the first uploads of the adapters are equal."""
    local, shared = Federation(Local(algorithms.get(name))), Federation(algorithms.get(name))
    local.step(0)
    shared.step(0)
    for one, other in zip(local.sent, shared.sent, strict=True):
        assert one.params.keys() == {n for n in other.params if not head(n.removeprefix(AUXILIARY_PREFIX))}
        for n in one.params:
            torch.testing.assert_close(one.params[n], other.params[n], rtol=0, atol=1e-14)
        torch.testing.assert_close(local.locals[one.client.id][HEAD], other.params[HEAD], rtol=0, atol=1e-14)


@every_algorithm
def test_wrapped_algorithm_never_has_the_head(name: str) -> None:
    run = Federation(Local(algorithms.get(name)))
    run.step(0)
    assert not pick(run.state.inner.params, head)
    assert torch.equal(run.state.params[HEAD], run.problem.params[HEAD])
