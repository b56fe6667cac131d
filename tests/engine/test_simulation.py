"""Rounds on a real, tiny network: every algorithm and head policy, failures, traffic, sampling and checkpoints."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tiny
from composed import Composed
from methods import every_method
from records import timeless
from rondo import algorithms
from rondo.algorithm import Client, Round, Shared, weighted_mean
from rondo.config import ClientsConfig, RunConfig
from rondo.data.population import Population
from rondo.engine import scoring
from rondo.engine.scoring import scores, spread
from rondo.engine.server.ledger import Ledger
from rondo.engine.transport import Observer
from rondo.engine.wire import serialization
from rondo.engine.wire.parcel import version
from rondo.lowrank import GrowingSum, LowRank
from rondo.params import HEAD_PREFIX, adapted_modules, head, num_bytes, pick
from rondo.privacy.sums import sum as sums
from rondo.privacy.sums.sum import sample
from rondo.tasks.language.text import TextExample
from tiny_federation import (
    ALONE,
    EVERY_HEAD,
    HEADS,
    HEADS_OF_KINDS,
    NAMES,
    POISON,
    RANK,
    SIZES,
    change,
    config,
    examples,
    make,
    population,
    run,
)


def fixed_choice(monkeypatch: pytest.MonkeyPatch, choose: Callable[[int], Sequence[str]]) -> None:
    """Let only the clients that ``choose`` names for a round take part."""
    monkeypatch.setattr(sums, "sample", lambda _, clients, round: [c for c in clients if c.id in choose(round.index)])


# Every algorithm with every head policy


def sends(sim: Any) -> bool:
    """Whether clients send anything: a method may keep all that is trained with them."""
    return not all(map(sim.algorithm.traits.keeps, sim.initial))


OWN_MODELS = ("ditto", "apfl", "l2gd", "fed-mtl")
"""Methods whose clients have whole models of their own, a shared head included."""


@pytest.mark.parametrize(("name", "policy"), HEADS_OF_KINDS)
def test_two_rounds_run_learn_and_are_scored(name: str, policy: str) -> None:
    sim = make(name, policy)
    before = change(sim, *sim.newcomer(0))
    records = run(sim)
    for t, record in enumerate(records):
        assert (record["round"], record["clients"], record["sampled"], record["failed"]) == (t, 3, 3, [])
        assert record["loss"] > 0
        assert (record["bytes_up"] > 0) is sends(sim)
    after = change(sim, *sim.newcomer(2))
    moved = {n for n, t in after.items() if not t.equal(before[n])}
    # A newcomer's B is the initial one, so nothing is added for it yet.
    cold = name == "fedsa-lora" or algorithms.entry(name).traits.keeps("layer.B")
    assert moved == {n for n in after if n in sim.network.sites and not cold} | (
        set(sim.network.initial_head) if policy == "shared" else set()
    )
    shares_its_head = algorithms.entry(name).traits.keeps == head and policy == "shared"
    personal = policy == "local" or (algorithms.entry(name).traits.personal and not shares_its_head)
    start = make(name, policy)
    first = start.algorithm.local_init(start.algorithm.broadcast(start.state, NEW, start.round(0)), NEW)
    assert sim.algorithm.traits.personal == personal
    assert set(sim.locals) == (set(SIZES) if personal or name == "scaffold" else set())  # its control variates
    for client, local in sim.locals.items():
        own_head = policy == "local" or (policy == "shared" and name in OWN_MODELS)
        assert bool(pick(local, head)) == own_head, local.keys()
        assert local.keys() == sim.answered[1, client].keys()
        for tensor in local:  # trained, and no copy of another client's
            others = [first[tensor], *(sim.locals[c][tensor] for c in SIZES if c != client)]
            assert [t for t in others if local[tensor].equal(t)] == []
    kind = "cold_start" if personal else "global"
    assert sim.score_newcomer(2).keys() == {kind}
    assert sim.score_newcomer(2)[kind]["examples"] == 6
    client_scores = sim.score_clients(2)
    assert client_scores.keys() == {"personal" if personal else "clients"}
    assert {c for part in client_scores.values() for c in part["per_client"]} == set(SIZES)


@pytest.mark.parametrize(("name", "policy"), HEADS_OF_KINDS)
@pytest.mark.sweep(2)
def test_seed_fixes_all_bits_in_any_order_of_clients(name: str, policy: str) -> None:
    one = make(name, policy)
    people = population(dict(reversed(SIZES.items())))
    two = make(name, policy, people=people)
    assert list(two.population.members) != list(one.population.members)
    torch.manual_seed(99)
    records = [run(s) for s in (one, two)]
    assert serialization.same(one.state, two.state)
    assert serialization.same(one.locals, dict(sorted(two.locals.items())))
    for a, b in zip(*records, strict=True):
        assert timeless(a) == timeless(b)
    other = make(name, policy, run=config(seed=6))
    run(other)
    assert not serialization.same((one.state, one.locals), (other.state, other.locals))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.sweep(6)
def test_kept_tensors_lie_in_memory_as_read_back(name: str) -> None:
    """Aligned, and never a row of a cohort's tensor, which it would keep alive."""
    sim = make(name, "local")
    run(sim)
    kept = [*serialization.tensors(sim.state), *serialization.tensors(sim.locals)]
    assert len(kept) > 4
    assert [t.shape for t in kept if t.untyped_storage().nbytes() != t.nbytes or t.data_ptr() % 64] == []


def test_training_lowers_the_global_models_loss() -> None:
    sim = make("fedit", run=config(train={"lr": 2e-2, "local_epochs": 4}))
    same_rule = Population(sim.population.members, sim.population.members["bob"].train, {})
    sim.population = same_rule
    before = sim.score_newcomer(0)["global"]["loss"]
    run(sim, 4)
    assert sim.score_newcomer(4)["global"]["loss"] < 0.9 * before


# Exactness


def gap(name: str, policy: str, rounds: int, **fields: Any) -> float:
    """The largest difference between the global model's change and the weighted mean of the clients' changes."""
    sim = make(name, policy, dtype=torch.float64, **fields)
    worst = 0.0
    for t in range(rounds):
        shared = sim.algorithm.broadcast(sim.state, Client("x", 1), sim.round(t))
        sim.run_round(t)
        mean: dict[str, Tensor] = {}
        for client, size in SIZES.items():
            upload = {**shared.params, **sim.uploads[t, client].params}
            seen = sim.algorithm.view(replace(shared, params=upload), sim.answered[t, client])
            for path, matrix in change(sim, seen, shared.base).items():
                if not path.startswith(HEAD_PREFIX) or policy == "shared":
                    mean[path] = mean.get(path, 0) + matrix * size / sum(SIZES.values())
        new = change(sim, *sim.newcomer(t + 1))
        worst = max(worst, *(float((new[p] - mean[p]).abs().max()) for p in mean))
    return worst


@pytest.mark.parametrize("policy", HEADS)
@pytest.mark.parametrize("name", ["rolora", "ffa-lora"])
def test_global_model_is_the_mean_of_client_models(name: str, policy: str) -> None:
    assert algorithms.entry(name).traits.exact
    assert gap(name, policy, 3) < 1e-12


def test_mean_of_factors_is_not_the_mean_of_models() -> None:
    """``gap`` can tell them apart: FedIT's interference shows as soon as both factors differ."""
    assert gap("fedit", "shared", 2) > 1e-7


# Failures


@pytest.mark.parametrize(
    "settings", [pytest.param(ALONE, marks=pytest.mark.slow), config()], ids=["alone", "in cohorts"]
)
@pytest.mark.parametrize(("name", "policy"), HEADS_OF_KINDS)
@pytest.mark.sweep(3)
def test_failed_client_leaves_no_trace(
    name: str, policy: str, settings: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Except for its record: bit for bit as if never sampled, in this round and in the next, where it takes part
    again."""
    failing, absent = (make(name, policy, people=population(SIZES, poisoned=["bob"]), run=settings) for _ in range(2))
    record = failing.run_round(0)
    fixed_choice(monkeypatch, lambda t: ["ann", "cid"] if t == 0 else list(SIZES))
    expected = absent.run_round(0)
    (failure,) = record["failed"]
    assert (failure["client"], failure["reason"]) == ("bob", "nonfinite_loss")
    assert (record["clients"], record["sampled"], expected["sampled"]) == (2, 3, 2)
    assert serialization.same(failing.state, absent.state)
    assert serialization.same(failing.locals, absent.locals)
    assert "bob" not in failing.locals
    assert (record["loss"], record["bytes_up"]) == (expected["loss"], expected["bytes_up"])
    healthy = population(SIZES)
    failing.population = absent.population = healthy
    after, also = (s.run_round(1) for s in (failing, absent))
    assert after["failed"] == also["failed"] == []
    assert serialization.same(failing.state, absent.state)
    assert serialization.same(failing.locals, absent.locals)


def no_room() -> None:
    raise MemoryError("no room")


def no_room_on_an_accelerator() -> None:
    raise torch.OutOfMemoryError("no room")


def no_room_on_a_processor() -> None:
    torch.empty(2**50)


ROOMLESS = (no_room, no_room_on_an_accelerator, no_room_on_a_processor)


@pytest.mark.parametrize("fail", ROOMLESS)
def test_client_out_of_memory_is_recorded(fail: Callable[[], None]) -> None:
    sim = make(people=population(SIZES, poisoned=["bob"]))

    def before(rows: Sequence[TextExample]) -> None:
        if any(POISON in e.ids for e in rows):
            fail()

    sim.task.before = before
    assert len(sim.cohorts.plan(sim.population.clients)) == 1  # so that the cohort has to be halved
    record = sim.run_round(0)
    (failure,) = record["failed"]
    assert (failure["client"], failure["reason"]) == ("bob", "out_of_memory")
    assert "no room" in failure["detail"] or "DefaultCPUAllocator" in failure["detail"]
    assert record["clients"] == 2


@pytest.mark.parametrize("fail", ROOMLESS)
def test_cohort_out_of_memory_is_halved_without_loss(fail: Callable[[], None]) -> None:
    sim, alone = make(), make(run=ALONE)

    def before(rows: Sequence[TextExample]) -> None:
        if len(rows) > 4:  # rows of more than one client
            fail()

    sim.measure()
    sim.task.before = before
    record, expected = sim.run_round(0), alone.run_round(0)
    assert timeless(record) == timeless(expected)
    assert record["failed"] == []
    assert serialization.same(sim.state, alone.state)


class Watcher(Observer):
    """An observer that notes every call."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def round_started(self, index: int, clients: int) -> None:
        self.told.append((index, clients))

    def client_done(self, client: str, loss: float | None) -> None:
        assert loss is not None
        self.told.append((client, True))

    def client_failed(self, client: str) -> None:
        self.told.append((client, False))

    def round_done(self, record: dict[str, Any]) -> None:
        raise AssertionError("the runner says this")


def test_rounds_loss_is_weighted_by_the_uploads() -> None:
    """By the clients' numbers of examples, unless all clients count the same."""

    class Losses(Observer):
        def __init__(self) -> None:
            self.by_client: dict[str, float] = {}

        def client_done(self, client: str, loss: float | None) -> None:
            assert loss is not None
            self.by_client[client] = loss

    for weighting, weights in (("examples", SIZES), ("uniform", dict.fromkeys(SIZES, 1))):
        losses = Losses()
        record = make(run=config(clients={"weighting": weighting})).run_round(0, losses)
        expected = sum(weights[c] * loss for c, loss in losses.by_client.items()) / sum(weights.values())
        assert losses.by_client.keys() == SIZES.keys()
        assert record["loss"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", every_method())
def test_round_with_too_few_clients_is_skipped(name: str) -> None:
    """The state and the local tensors stay, and the run continues."""
    people = population(SIZES, poisoned=["bob", "cid"])
    settings = config(clients={"min_clients": 2})
    sim = make(name, people=people, run=settings)
    sim.population = population(SIZES)
    sim.run_round(0)
    sim.population = people
    held, locals_held = sim.state, dict(sim.locals)
    packed = serialization.pack(sim.state), serialization.pack(sim.locals)
    watcher = Watcher()
    record = sim.run_round(1, watcher)
    assert (record["skipped"], record["clients"]) == ("1 uploads, min_clients is 2", 1)
    assert [(f["client"], f["reason"]) for f in record["failed"]] == [(c, "nonfinite_loss") for c in ("bob", "cid")]
    assert "diagnostics" not in record
    assert sim.state is held
    assert sim.locals.keys() == locals_held.keys()
    assert (serialization.pack(sim.state), serialization.pack(sim.locals)) == packed
    assert watcher.told == [(1, 3), ("ann", True), ("bob", False), ("cid", False)]
    sim.population = population(SIZES)
    assert sim.run_round(2)["skipped"] is None


@pytest.mark.parametrize("name", every_method([n for n in NAMES if n != "per-fedavg"]))  # it divides batches by order
@pytest.mark.sweep(6)
def test_skipped_attempts_leave_the_model_as_it_would_be(name: str) -> None:
    """Stages, periods and alternation go on where they were. Batches hold all rows, so that the order of the rows,
    which goes by attempt, moves nothing but rounding."""
    fields = {"fedloru": {"tau": 2}, "mfedloru": {"tau": 2}, "fedsvd": {"period": 2}, "slora": {"sparse_rounds": 2}}
    everything = {"batch_size": 16, "optimizer": "sgd", "lr": 0.05}
    settings = config(rounds=10, train=everything, clients={"min_clients": 3}, simulation={"cohort": 1})

    def federation() -> Composed:
        return make(name, run=settings, **fields.get(name, {}), dtype=torch.float64)

    plain, interrupted = federation(), federation()
    healthy, ailing = population(SIZES), population(SIZES, poisoned=["bob"])
    for attempt in range(9):
        interrupted.population = ailing if attempt in (0, 2, 3, 5) else healthy
        record = interrupted.run_round(attempt)
        assert (record["skipped"] is not None) == (attempt in (0, 2, 3, 5))
    assert record["aggregated"] == 5
    for attempt in range(5):
        plain.run_round(attempt)
    for client in (NEW, *plain.population.clients):
        expected, actual = (change(sim, *sim.model(client, 9)) for sim in (plain, interrupted))
        for tensor in expected:
            torch.testing.assert_close(actual[tensor], expected[tensor], rtol=1e-6, atol=1e-9)


def test_repeated_exchange_forgets_no_bytes() -> None:
    """Clients that trained beside one that failed are asked again, and hold by then whatever they were sent."""
    settings = config(simulation={"cohort": 4})
    sim, other = make(people=population(SIZES, poisoned=["bob"]), run=settings), make(run=settings)
    sim.ledger, other.ledger = Ledger(), Ledger()  # of clients that make nothing themselves
    (record,) = run(sim, 1)
    assert [f["client"] for f in record["failed"]] == ["bob"]
    (plain,) = run(other, 1)
    for key in ("bytes_down", "bytes_first_contact"):
        assert record[key] == plain[key] > 0


def test_round_of_failing_clients_is_skipped() -> None:
    sim = make(people=population(SIZES, poisoned=list(SIZES)))
    sim.ledger = Ledger()  # of clients that make nothing themselves
    before = serialization.pack(sim.state)
    record = sim.run_round(0)
    assert (record["skipped"], record["loss"], record["bytes_up"]) == ("0 uploads, min_clients is 1", None, 0)
    assert record["bytes_down"] > 0
    assert serialization.pack(sim.state) == before


def test_nonfinite_aggregate_never_becomes_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every upload is finite, and so is their mean; in float32 it overflows."""
    sim = make("fedit")
    before = serialization.pack(sim.state)

    def overflowing(held: Any, *_: Any) -> Any:
        return replace(held, params={n: t * torch.finfo(t.dtype).max * 2 for n, t in held.params.items()})

    with monkeypatch.context() as patch:
        patch.setattr(type(sim.algorithm), "finish", lambda self, *arguments: overflowing(*arguments))
        record = sim.run_round(0)
    assert record["skipped"] == "what the uploads were aggregated to is not finite"
    assert serialization.pack(sim.state) == before


# Traffic


def formula(sim: Composed, numbers: algorithms.Numbers, t: int) -> int:
    """Bytes of one client in round ``t``, adapters only."""
    sites = sim.network.sites.values()
    return 4 * sum(numbers(RANK, s.shape[1], s.shape[0], t, 3) for s in sites)


NEW = Client("new", 1)


@pytest.mark.parametrize(("name", "policy"), EVERY_HEAD)
@pytest.mark.sweep(3)
def test_traffic_equals_the_tables_formulas(name: str, policy: str) -> None:
    sim, entry = make(name, policy), algorithms.entry(name)
    shared_head = num_bytes(sim.network.initial_head) if policy == "shared" else 0
    shared_head *= 2 if entry.whole == "twice all" else 1
    for t, record in enumerate(run(sim, 3)):
        assert record["bytes_up"] == 3 * (formula(sim, entry.up_numbers, t) + shared_head)
        assert record["bytes_first_contact"] == 0
        most = 0 if t == 0 else 3 * (formula(sim, entry.down_numbers, t) + shared_head)
        assert record["bytes_down"] == most or (entry.traits.lossy and record["bytes_down"] < most)


def test_factors_of_a_folder_are_sent(tmp_path: Path) -> None:
    """No client can make them."""
    (tmp_path / "adapter_config.json").write_text("{}")
    sim = make("ffa-lora", run=config(adapter={"start_from": str(tmp_path)}))
    everything = num_bytes(sim.algorithm.broadcast(sim.state, NEW, sim.round(0)).params)
    first, second = run(sim)
    assert first["bytes_down"] == first["bytes_first_contact"] == 3 * everything
    assert second["bytes_first_contact"] == 0


def test_client_that_missed_rounds_gets_both_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [["ann", "bob"], ["ann"], ["bob"], ["ann"], ["cid"]]
    fixed_choice(monkeypatch, lambda t: chosen[t])
    sim = make("rolora", run=config(rounds=5))
    head_bytes = num_bytes(sim.network.initial_head)
    a_bytes, b_bytes = (4 * RANK * sum(s.shape[i] for s in sim.network.sites.values()) for i in (1, 0))
    assert a_bytes != b_bytes
    down = [(r["bytes_down"] - r["bytes_first_contact"], r["bytes_first_contact"]) for r in run(sim, 5)]
    whole = a_bytes + b_bytes + head_bytes
    assert down == [
        (0, 0),  # ann and bob make the start themselves
        (b_bytes + head_bytes, 0),  # B was averaged in round 0
        (whole, 0),  # bob lacks round 0's B and round 1's A
        (whole, 0),  # ann lacks round 1's A (the mean, not her own) and round 2's B
        (0, whole),
    ]


def test_late_joiner_gets_the_sum_and_returning_client_the_less(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [["ann"], *[["bob", "cid"]] * 9, ["ann"], ["ann"], ["dan"]]
    fixed_choice(monkeypatch, lambda t: chosen[t])
    sim = make("flora", "frozen", people=population({**SIZES, "dan": 4}), run=config(rounds=13))
    down = [record["bytes_down"] for record in run(sim, 13)]
    sites = sim.network.sites.values()
    matrices, factors = 4 * sum(s.shape[0] * s.shape[1] for s in sites), 4 * RANK * sum(sum(s.shape) for s in sites)
    assert down[:2] == [0, 2 * factors]  # one client's stack; A and B are made by the clients
    assert down[2:10] == [2 * (2 * factors)] * 8  # two clients' stack; A and B stay as they are
    assert down[10] == matrices < 9 * 2 * factors  # ann lacks nine stacks of two clients
    assert down[11] == factors
    assert down[12] == matrices


def test_ledger_counts_the_bytes_that_a_client_lacks() -> None:
    ledger = Ledger()
    one, other = torch.zeros(3), torch.ones(3)
    chunk = LowRank(torch.ones(4, 1), torch.ones(1, 5))
    assert ledger.send("x", Shared({"a.A": one})) == (12, 12)
    assert ledger.send("x", Shared({"a.A": one.clone()})) == (0, 0)
    assert ledger.send("x", Shared({"a.A": other})) == (12, 0)
    assert ledger.send("x", Shared({"a.A": one})) == (12, 0)  # an older version is not kept
    assert ledger.send("x", Shared({"a.A": one.double()})) == (24, 0)
    change = GrowingSum.of(chunk)
    assert ledger.send("y", Shared({"a.A": one, "a.B": one}, {"a": change})) == (60, 60)
    assert ledger.send("y", Shared({"a.A": one, "a.B": one}, {"a": change + 2 * chunk})) == (36, 0)  # no first contact
    assert version(one) == version(torch.zeros(3)) != version(torch.zeros(1, 3))
    assert version(torch.zeros(2, dtype=torch.int32)) != version(torch.zeros(2))


# Local tensors


def test_local_tensors_persist_and_are_trained_further(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = [["ann", "bob"], ["ann"], ["bob", "cid"]]
    fixed_choice(monkeypatch, lambda t: chosen[t])
    sim = make("fedsa-lora", "local", run=config(train={"optimizer": "sgd", "lr": 1e-12}))
    marked = {}
    sim.run_round(0)
    for value, client in ((1.0, "ann"), (2.0, "bob")):
        marked[client] = {n: torch.full_like(t, value) for n, t in sim.locals[client].items()}
        sim.locals[client] = dict(marked[client])
    assert {n for n in marked["ann"] if not n.endswith(".B")} == set(sim.network.initial_head)
    assert sim.run_round(1)["clients"] == 1
    assert serialization.same(sim.locals["bob"], marked["bob"])
    sim.run_round(2)
    for client in ("ann", "bob"):
        for n, t in sim.locals[client].items():
            torch.testing.assert_close(t, marked[client][n], rtol=0, atol=1e-6)
    kept = sim.locals["cid"]  # the common start
    assert {n: t for n, t in kept.items() if n.endswith(".B") and not t.abs().max() < 1e-6} == {}
    for client, value in (("ann", 1.0), ("bob", 2.0)):
        seen, _ = sim.model(sim.population.members[client].client, 3)
        assert {n: t for n, t in seen.items() if not n.endswith(".A") and not (t == value).all()} == {}
    seen, _ = sim.newcomer(3)
    assert {n: t for n, t in seen.items() if n.endswith(".B") and t.any()} == {}


def test_client_may_have_the_newcomers_name() -> None:
    """Ids come from users' data, so no name can be reserved for the newcomer."""
    sim = make("fedsa-lora", "local", people=population({scoring.NEWCOMER.id: 6, "ann": 5}))
    run(sim)
    seen, _ = sim.newcomer(2)
    for name, tensor in seen.items():
        if not name.endswith(".A"):
            assert tensor.equal(sim.initial[name])


def test_clients_tensors_meet_only_in_the_mean() -> None:
    """A client's tensors reach another client only through the mean: alone, each client trains to the same upload.

    To the bit in cohorts of one; for larger cohorts see client/test_cohorts.py."""
    together = make("fedsa-lora", "local", run=ALONE)
    run(together, 1)
    for client in SIZES:
        alone = make("fedsa-lora", "local", people=population({client: SIZES[client]}), run=ALONE)
        run(alone, 1)
        assert serialization.same(dict(alone.uploads[0, client].params), dict(together.uploads[0, client].params))
        assert serialization.same(alone.locals[client], together.locals[client])


def test_weights_are_examples_or_uniform() -> None:
    for weighting, weights in (("examples", list(SIZES.values())), ("uniform", [1, 1, 1])):
        sim = make("fedit", run=config(clients={"weighting": weighting}))
        run(sim, 1)
        uploads = [sim.uploads[0, c] for c in SIZES]
        assert [u.weight for u in uploads] == weights
        mean = weighted_mean(uploads).params
        assert {n: t for n, t in mean.items() if not t.float().equal(sim.state.params[n])} == {}


def test_algorithm_sees_the_frozen_matrices() -> None:
    sim = make("florg", bases="svd")
    for path in adapted_modules(sim.state.params):
        weight = tiny.bert().get_submodule(path).weight.detach()
        left, right = sim.state.params[f"{path}.L"], sim.state.params[f"{path}.R"]
        core = left.T @ weight @ right.T
        torch.testing.assert_close(core, core.diagonal().diag(), rtol=0, atol=1e-4)
        torch.testing.assert_close(core.diagonal(), torch.linalg.svdvals(weight), rtol=0, atol=1e-4)


# Scores


def test_scores_do_not_depend_on_batching_or_order() -> None:
    sim = make()
    run(sim, 1)
    seen, base = sim.newcomer(1)
    rows = list(examples("ann", 11))
    whole = scores(sim.network, sim.task, seen, base, rows, batch_size=64)
    parts = scores(sim.network, sim.task, seen, base, rows[::-1], batch_size=3)
    assert whole["examples"] == parts["examples"] == 11
    for metric in ("accuracy", "f1", "loss"):
        assert whole[metric] == pytest.approx(parts[metric], abs=1e-5)


def test_spread_over_clients_is_that_of_numpy() -> None:
    values, rows = [0.5, 0.9, 0.2, 1.0], [10, 3, 0, 7]
    clients = {str(i): {"m": v, "examples": n} for i, (v, n) in enumerate(zip(values, rows, strict=True))}
    scores = spread({**clients, "single class": {"m": None, "examples": 40}}, "m", higher_is_better=True)
    assert scores["mean"] == pytest.approx(np.mean(values))
    assert scores["weighted_mean"] == pytest.approx(np.average(values, weights=rows))
    assert scores["deviation"] == pytest.approx(np.std(values))
    assert (scores["clients"], scores["undefined"]) == (4, 1)
    assert spread({"a": {"m": 2.0}}, "m")["weighted_mean"] is None, "rows are not counted"
    assert set(spread({"a": {"m": None}}, "m").values()) == {None, 0, 1}


def test_worst_tenth_is_taken_from_the_bad_end() -> None:
    client_scores: dict[str, dict[str, float | None]] = {f"c{i}": {"m": float(i)} for i in range(20)}
    client_scores["none"] = {"m": None}
    scores = spread(client_scores, "m", higher_is_better=True)
    assert {name: scores[name] for name in ("mean", "worst_tenth", "clients")} == {
        "mean": 9.5,
        "worst_tenth": 0.5,
        "clients": 20,
    }
    assert spread(client_scores, "m", higher_is_better=False)["worst_tenth"] == 18.5
    assert spread({"a": {"m": 2.0}}, "m", higher_is_better=True)["worst_tenth"] == 2.0
    assert spread({"a": {"m": None}}, "m", higher_is_better=True)["mean"] is None


# Sampling

CROWD = [Client(f"c{i:03}", 1 + 9 * (i >= 25)) for i in range(50)]


def draws(rounds: int = 200, **options: Any) -> list[list[Client]]:
    settings = ClientsConfig(**options)
    return [sample(settings, CROWD, Round(t, rounds, 3, 50)) for t in range(rounds)]


def shares(samples: list[list[Client]]) -> list[float]:
    return [sum(c in chosen for chosen in samples) / len(samples) for c in CROWD]


@pytest.mark.parametrize("kind", ["uniform", "poisson", "weighted"])
def test_samples_are_sorted_distinct_and_repeatable(kind: Any) -> None:
    """They change with the round and with the seed."""
    samples = draws(20, per_round=10, sampling=kind)
    assert samples == draws(20, per_round=10, sampling=kind)
    assert len({tuple(c.id for c in chosen) for chosen in samples}) == 20
    for chosen in samples:
        ids = [c.id for c in chosen]
        assert ids == sorted(set(ids))
    by_seed = [sample(ClientsConfig(per_round=10, sampling=kind), CROWD, Round(0, 20, s, 50)) for s in (3, 4)]
    assert by_seed[0] != by_seed[1]


def test_uniform_samples_have_their_size_and_no_favourites() -> None:
    samples = draws(per_round=10)
    assert {len(chosen) for chosen in samples} == {10}
    assert [share for share in shares(samples) if not 0.05 < share < 0.35] == []
    assert draws(1, per_round=99) == [CROWD]
    assert draws(1) == [CROWD]


def test_full_samples_take_every_client() -> None:
    assert draws(2, sampling="full") == [CROWD, CROWD]


def test_weighted_samples_have_their_size_and_favour_the_large() -> None:
    samples = draws(per_round=5, sampling="weighted")
    assert {len(chosen) for chosen in samples} == {5}
    share = shares(samples)
    small, large = sum(share[:25]) / 25, sum(share[25:]) / 25
    assert 5 < large / small < 15
    assert small > 0


def test_poisson_samples_vary_in_size_around_their_mean() -> None:
    samples = draws(400, per_round=10, sampling="poisson")
    sizes = [len(chosen) for chosen in samples]
    assert 9.3 < sum(sizes) / 400 < 10.7  # 10 +- 5 standard errors
    assert 2 < torch.tensor(sizes, dtype=torch.float64).std() < 4  # sqrt(50 * 0.2 * 0.8) = 2.8
    assert [share for share in shares(samples) if not 0.08 < share < 0.35] == []


def test_round_with_an_empty_sample_is_skipped() -> None:
    people = population({f"c{i}": 4 for i in range(3)})
    for seed in range(100):
        sim = make(people=people, run=config(seed=seed, clients={"per_round": 1, "sampling": "poisson"}))
        if not sample(sim.config.clients, people.clients, sim.round(0)):
            break
    before = serialization.pack(sim.state)
    record = sim.run_round(0)
    assert (record["sampled"], record["skipped"]) == (0, "0 uploads, min_clients is 1")
    assert serialization.pack(sim.state) == before


# Base changes


def test_dense_base_change_acts_as_its_factors() -> None:
    sim = make("flora", dtype=torch.float64)
    g = torch.Generator().manual_seed(0)
    stacks, sums = {}, {}
    for path, site in sim.network.sites.items():
        (out, inp), ranks = site.shape, (3, 40, 5)  # past out * in / (out + in), and past min(out, in)
        chunks = [
            LowRank(*(torch.randn(s, generator=g).double() / 50 for s in ((out, rank), (rank, inp)))) for rank in ranks
        ]
        stacks[path] = GrowingSum(3, sum(chunks[1:], chunks[0]), ranks)
        sums[path] = GrowingSum.of(chunks[0]) + chunks[1] + chunks[2]
        assert sums[path].dense is not None
    on_device = sim.network.on_device(sums)
    assert sim.network.on_device(sums) is on_device  # made once for all clients of a round
    assert {path: change.recent.rank for path, change in on_device.items() if change.recent.rank} == {}
    seen = {**sim.network.initial_head, **sim.initial}
    rows = sim.population.test
    scores = sim.scores(seen, stacks, rows)
    assert sim.scores(seen, sums, rows) == pytest.approx(scores, rel=1e-12)
    assert sim.scores(seen, on_device, rows) == pytest.approx(scores, rel=1e-12)
    assert sim.scores(seen, {}, rows) != pytest.approx(scores, rel=1e-6)


def test_score_that_is_no_number_is_none() -> None:
    """JSON has no NaN, and no other loss would count as better than one."""
    sim = make("fedit")
    seen, base = sim.newcomer(0)
    found = sim.scorer.scores({n: t.fill_(math.nan) for n, t in seen.items()}, base, sim.population.sample(5))
    assert found["loss"] is None
    assert found["accuracy"] is not None
