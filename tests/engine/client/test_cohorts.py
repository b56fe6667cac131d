"""Clients in a cohort get the results that they would get alone; and cohorts are planned in order."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import tiny
from composed import Composed
from methods import every_method
from rondo import algorithms
from rondo.algorithm import Client, HeadPolicy, Round, Upload
from rondo.config import RunConfig, load
from rondo.config.inputs import TaskConfig
from rondo.data.members import Member
from rondo.data.population import Population
from rondo.engine.client.cohorts import divided, in_order, in_turn, one_cohort
from rondo.engine.client.memory import Budget, activation_bytes, budget
from rondo.engine.server.admission import Admission
from rondo.engine.transport import Answer
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.shortcuts.choose import split_off
from rondo.params import Packed, Params
from rondo.runs.assembling.wrapping import with_policies
from rondo.tasks.language.causal_lm import CausalLM
from rondo.tasks.language.embedding.embedding import Embedding
from rondo.tasks.language.embedding.pairs import NO_SCORE, TextGroup
from rondo.tasks.language.text import TextExample, TextTask
from tiny_federation import HEADS, HEADS_OF_KINDS, POISON, Task

SIZES = {"ann": 3, "bob": 9, "cid": 6, "dee": 1}
"""With batches of 4: one, three, two and one steps per epoch; the last batches have 3, 1, 2 and 1 rows."""

slow = pytest.mark.slow

EXACT = 1e-12
"""float64: the same sums in another order."""

SINGLE = 1e-5
"""float32: SGD with momentum, two epochs (up to 6 steps) at a rate of 1e-3. AdamW is held to float64 only: it
divides by the gradient's size, so where the gradient is of the order of rounding a step could differ by the rate."""


def examples(client: str, count: int, *, poisoned: bool = False, length: int | None = None) -> tuple[TextExample, ...]:
    """Sentences of 3 to 14 tokens, or of ``length`` words; ``poisoned``: the last one has the poisoned word."""
    g = Round(0, 1, 0, 0).generator(client)
    rows = []
    for i in range(count):
        size = int(torch.randint(1, 13, (1,), generator=g)) if length is None else length
        body = torch.randint(4, POISON, (size,), generator=g).tolist()
        if poisoned and i == count - 1:
            body[0] = POISON
        rows.append(TextExample((2, *body, 3), body[-1] % 3, (0,) * (size + 2)))
    return tuple(rows)


def population(poisoned: str = "", length: int | None = None) -> Population:
    members = {
        name: Member(Client(name, size), examples(name, size, poisoned=name == poisoned, length=length), ())
        for name, size in SIZES.items()
    }
    return Population(members, (), {})


def config(cohort: Any = "auto", **train: Any) -> RunConfig:
    length = {} if "local_steps" in train else {"local_epochs": 2}
    settings = {"lr": 2e-3, "batch_size": 4, "max_grad_norm": 0.1, **length, **train}
    return load({"seed": 5, "rounds": 4, "train": settings, "simulation": {"cohort": cohort}})


ADAMW = {"optimizer": "adamw", "weight_decay": 0.1}
SGD = {"optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.01, "lr": 0.05}


def make(
    name: str,
    policy: HeadPolicy = "shared",
    *,
    run: RunConfig | None = None,
    people: Population | None = None,
    dropout: float = 0.0,
    dtype: torch.dtype = torch.float64,
) -> Composed:
    module = tiny.bert().to(dtype)
    sites = tiny.sites(module, ("query", "intermediate.dense"), rank=3, dropout=dropout)
    network = AdaptedNetwork(module, sites, tiny.head_names(module))
    # Not PEFT's start of B = 0, so that every tensor has a gradient from the first round on.
    initial = tiny.factors(sites, 1, dtype=dtype)
    if policy != "frozen":
        initial |= network.initial_head
    algorithm = with_policies(algorithms.get(name), policy)
    return Composed(algorithm, network, Task(), people or population(), run or config(), initial)


def language(name: str) -> Composed:
    """Clients that continue sentences; the first half of each sentence is the prompt."""
    module = tiny.llama_lm().double()
    sites = tiny.sites(module, ("q_proj", "down_proj"), rank=3, dropout=0.4)
    network, initial = AdaptedNetwork(module, sites, ()), tiny.factors(sites, 1)
    members = {}
    for client, size in SIZES.items():
        rows = [e.ids for e in examples(client, size)]
        prompted = [TextExample(ids, (-100,) * (len(ids) // 2) + ids[len(ids) // 2 :]) for ids in rows]
        members[client] = Member(Client(client, size), tuple(prompted), ())
    task = CausalLM(tiny.tokenizer("llama"), "text", (), None, 32)
    task = task.with_output(split_off(network, initial, task.collate(members["ann"].train)[0]))
    return Composed(algorithms.get(name), network, task, Population(members, (), {}), config(**ADAMW), initial)


def embedding(rated: bool) -> Composed:
    """Clients with triplets of sentences, each with texts of other lengths; some have a score if ``rated``."""
    module = tiny.bert().bert.double()
    sites = tiny.sites(module, ("query", "output.dense"), rank=3, dropout=0.4)
    network, initial = AdaptedNetwork(module, sites, ()), tiny.factors(sites, 1)
    members = {}
    for client, size in SIZES.items():
        texts = [TextExample(e.ids, NO_SCORE, e.segments) for e in examples(client, 3 * size)]
        rows = [texts[i::size] for i in range(size)]
        scores = [i / size if rated and i % 2 else NO_SCORE for i in range(size)]
        pairs = [TextGroup(tuple(replace(t, target=s) for t in row)) for row, s in zip(rows, scores, strict=True)]
        members[client] = Member(Client(client, size), tuple(pairs), ())
    task = Embedding(tiny.tokenizer(), TaskConfig(kind="embedding", scale=3.0))
    return Composed(algorithms.get("fedit"), network, task, Population(members, (), {}), config(**ADAMW), initial)


def trained(sim: Composed, chosen: Sequence[str] = tuple(SIZES), *, alone: bool, index: int = 1) -> list[Answer]:
    """Local training of a round, in one cohort or one client at a time."""
    round = sim.round(index)
    clients = tuple(sim.population.members[c].client for c in chosen)
    shared = tuple(sim.algorithm.broadcast(sim.state, c, round) for c in clients)
    if not alone:
        return sim.train(clients, round, shared)
    return [answer for c, s in zip(clients, shared, strict=True) for answer in sim.train((c,), round, (s,))]


def assert_same(found: Params, expected: Params, allowed: float) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.shape == expected[name].shape
        assert tensor.isfinite().all()
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=allowed)


def assert_law(together: Sequence[Answer], alone: Sequence[Answer], allowed: float) -> None:
    assert [t.client for t in together] == [t.client for t in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.upload is not None
        assert other.upload is not None
        assert one.upload.client == other.upload.client
        # A weight that is a norm of trained tensors differs as they do.
        assert one.upload.weight == pytest.approx(other.upload.weight, rel=allowed)
        assert_same(one.upload.params, other.upload.params, allowed)
        assert_same(one.kept, other.kept, allowed)
        assert one.loss == pytest.approx(other.loss, abs=max(allowed, 1e-9))
        assert one.failure is None


# The law


@pytest.mark.parametrize("dropout", [pytest.param(0.0, marks=slow), 0.4], ids=["plain", "dropout"])
@pytest.mark.parametrize("train", [ADAMW, pytest.param(SGD, marks=slow)], ids=["adamw", "sgd"])
@pytest.mark.parametrize("policy", HEADS)
@pytest.mark.parametrize("name", every_method())
@pytest.mark.sweep(3)
def test_cohort_equals_clients_alone(name: str, policy: str, train: Any, dropout: float) -> None:
    sim = make(name, policy, run=config(**train), dropout=dropout)
    together, alone = (trained(sim, alone=a) for a in (False, True))
    assert_law(together, alone, EXACT)
    start = sim.state.params
    for answer in together:
        assert answer.upload is not None
        tensors = {**answer.upload.params, **answer.kept}
        assert [n for n in tensors.keys() & start.keys() if not tensors[n].equal(start[n])], "nothing was trained"


@pytest.mark.parametrize("name", every_method())
@pytest.mark.sweep(3)
def test_language_cohort_equals_clients_alone(name: str, logits_of: Callable[[int, int], None]) -> None:
    """With the loss computed a few tokens at a time, so that the logits are never whole."""
    logits_of(5, tiny.VOCABULARY)  # of several clients
    sim = language(name)
    together, alone = (trained(sim, alone=a) for a in (False, True))
    assert_law(together, alone, EXACT)
    assert together[0].loss not in [answer.loss for answer in together[1:]]


@pytest.mark.parametrize("rated", [False, True])
def test_embedding_cohort_equals_clients_alone(rated: bool) -> None:
    """The negatives of a row are its own client's."""
    sim = embedding(rated)
    together, alone = (trained(sim, alone=a) for a in (False, True))
    assert_law(together, alone, EXACT)
    assert together[0].loss not in [answer.loss for answer in together[1:]]


@pytest.mark.parametrize("dropout", [0.0, 0.4], ids=["plain", "dropout"])
def test_cohort_with_rows_of_one_length(dropout: float) -> None:
    sim = make("fedit", people=population(length=5), dropout=dropout)
    assert_law(trained(sim, alone=False), trained(sim, alone=True), EXACT)


def test_dropout_changes_every_clients_loss() -> None:
    dropped, plain = (trained(make("fedit", dropout=d), alone=False) for d in (0.4, 0.0))
    for one, other in zip(dropped, plain, strict=True):
        assert one.loss != pytest.approx(other.loss, abs=1e-6)


@pytest.mark.parametrize(("name", "policy"), HEADS_OF_KINDS)
@pytest.mark.sweep(3)
def test_cohort_equals_clients_alone_in_float32(name: str, policy: str) -> None:
    run = config(optimizer="sgd", momentum=0.9, weight_decay=0.01, lr=1e-3)
    sim = make(name, policy, run=run, dtype=torch.float32)
    assert_law(trained(sim, alone=False), trained(sim, alone=True), SINGLE)


@pytest.mark.parametrize(
    "train",
    [{"local_steps": 2}, {"local_steps": 5}, {"local_epochs": 3}, {"batch_size": 1}, {"length_grouping": False}],
    ids=str,
)
def test_cohort_with_other_steps_epochs_and_batches(train: Any) -> None:
    sim = make("fedit", run=config(**train))
    assert_law(trained(sim, alone=False), trained(sim, alone=True), EXACT)


@pytest.mark.parametrize(("megabytes", "at_once"), [(0.1, 4), (0.2, 3), (0.3, 3), (0.4, 2), (0.6, 1), (10.0, 1)])
def test_memory_limits_cohorts_at_once(megabytes: float, at_once: int) -> None:
    """Fewer cohorts than memory allows train at once where more would leave threads idle."""
    sim = make("fedit", run=config("auto"))
    settings = sim.config.simulation.model_copy(update={"memory_mb": 1})
    sim.config = sim.config.model_copy(update={"simulation": settings})
    torch.set_num_threads(6)  # 0.2 of 1 MB each would let five train at once and leave the sixth thread idle
    clients = sim.population.clients
    sim.bytes_per_cost = megabytes * 2**20 / sim.cohorts._step(clients)
    cohorts = sim.cohorts.plan(clients)
    assert [len(c) for c in cohorts] == [1] * len(SIZES)
    assert sim.cohorts.at_once(cohorts) == at_once
    assert sim.cohorts.at_once(cohorts[:1]) == 1
    assert sim.cohorts.at_once([]) == 1


@pytest.mark.parametrize(
    ("workers", "allowed", "at_once"), [(16, 10, 8), (16, 13, 8), (8, 5, 4), (7, 6, 6), (5, 4, 4), (2, 1, 1), (4, 4, 4)]
)
def test_spare_threads_are_shared_out_where_worthwhile(workers: int, allowed: int, at_once: int) -> None:
    """Memory allows fewer cohorts than threads; fewer cohorts still may share the threads better."""
    sim = make("fedit", run=config("auto"))
    settings = sim.config.simulation.model_copy(update={"memory_mb": allowed})
    sim.config = sim.config.model_copy(update={"simulation": settings})
    torch.set_num_threads(workers)
    sim.bytes_per_cost = 2.0**20
    assert sim.cohorts._at_once(1) == at_once


@pytest.mark.parametrize("threads", [1, 4])
def test_processor_budget_is_256_mib_per_thread(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """256 MiB of activations per thread, and at most half of the machine's memory."""
    network = make("fedit", run=config("auto")).network
    torch.set_num_threads(threads)
    allowed = budget(network, Task(), "auto")
    assert (allowed.cohort, allowed.total) == (128 * 2**20, threads * 256 * 2**20)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1024}.__getitem__)
    assert budget(network, Task(), "auto").total == 2**21
    assert budget(network, Task(), 3) == Budget(3 * 2**20, 3 * 2**20, sys.maxsize)


def test_one_cohort_sets_and_restores_threads() -> None:
    """Trials before the first round run with the threads of one cohort."""
    network = make("fedit").network
    torch.set_num_threads(4)
    with one_cohort(network):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(("dtype", "together"), [(torch.float32, 2), (torch.bfloat16, 4)])
def test_processor_takes_no_larger_steps_than_useful(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, together: int
) -> None:
    sim = make("fedit", run=config("auto"))
    sim.network.module.to(dtype)
    sim.bytes_per_cost = 1.0  # memory alone would allow one cohort of all clients
    clients = sim.population.clients
    assert max(map(len, sim.cohorts.plan(clients))) == len(SIZES)
    monkeypatch.setattr(TextTask, "cohort_cost", 2 * sim.cohorts._step(clients))
    assert max(map(len, sim.cohorts.plan(clients))) == together


@pytest.mark.parametrize("count", [pytest.param(1, marks=slow), 2])
@pytest.mark.parametrize("name", every_method())
@pytest.mark.sweep(6)
def test_rounds_agree_for_any_cohort_size_and_threads(name: str, count: int) -> None:
    states = []
    torch.set_num_threads(count)
    for cohort in (1, 2, "auto"):
        sim = make(name, "local", run=config(cohort))
        records = [sim.run_round(t) for t in range(2)]
        assert [r for r in records if r["failed"] or r["clients"] != len(SIZES)] == []
        states.append((sim, records))
    (first, expected), *others = states
    for sim, records in others:
        assert_same(sim.state.params, first.state.params, EXACT)
        for client in SIZES:
            assert_same(sim.locals[client], first.locals[client], EXACT)
        for record, other in zip(records, expected, strict=True):
            assert record["loss"] == pytest.approx(other["loss"], abs=1e-6)
            assert (record["bytes_up"], record["bytes_down"]) == (other["bytes_up"], other["bytes_down"])


LINEAR = [n for n, entry in algorithms.TABLE.items() if entry.linear and not entry.traits.least_squares]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if i % 4 == 0 else slow) for i, n in enumerate(LINEAR)])
def test_linear_algorithms_hold_few_uploads_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many clients take part."""
    held: list[weakref.ref[Tensor]] = []
    most = 0
    check = Admission.check

    def watched(admission: Admission, upload: Upload) -> Upload:
        nonlocal most
        passed = check(admission, upload)
        assert isinstance(passed.params, Packed)
        held.append(weakref.ref(passed.params.vector))
        most = max(most, sum(ref() is not None for ref in held))
        return passed

    monkeypatch.setattr(Admission, "check", watched)
    people = Population({f"c{i}": Member(Client(f"c{i}", 2), examples(f"c{i}", 2), ()) for i in range(24)}, (), {})
    run = load({"seed": 5, "rounds": 9, "train": {"batch_size": 2}, "simulation": {"cohort": 1}})
    sim = make(name, people=people, run=run)
    for t in range(2):  # alternating methods have sent both factors by then
        sim.run_round(t)
    assert len(held) == 48
    assert most <= 10  # eight are added in one call


# Failures


@pytest.mark.parametrize("poisoned", ["ann", "bob", "dee"])
@pytest.mark.parametrize("train", [ADAMW, SGD], ids=["adamw", "sgd"])
def test_failed_client_does_not_affect_its_cohort(train: Any, poisoned: str) -> None:
    """The others get what they would get in a cohort without it."""
    sim = make("fedit", "local", run=config(**train), people=population(poisoned))
    whole = trained(sim, alone=False)
    (failed,) = (t for t in whole if t.failure is not None)
    assert failed.failure is not None
    assert (failed.client.id, failed.failure.reason) == (poisoned, "nonfinite_loss")
    assert (failed.upload, failed.kept, failed.failure.client) == (None, {}, poisoned)
    others = [c for c in SIZES if c != poisoned]
    assert_law([t for t in whole if t.failure is None], trained(sim, others, alone=False), EXACT)


def test_cohort_of_failing_clients_records_each_failure() -> None:
    sim = make("fedit", people=population("bob"))
    failed = trained(sim, ("bob", "bob"), alone=False)
    assert [t.failure.reason for t in failed if t.failure is not None] == ["nonfinite_loss"] * 2


def test_client_without_examples_fails_alone() -> None:
    people = population()
    people.members["bob"] = Member(Client("bob", 0), (), ())
    whole = trained(make("fedit", people=people), alone=False)
    assert [(t.client.id, t.failure.reason) for t in whole if t.failure is not None] == [("bob", "no_targets")]
    assert sum(t.upload is not None for t in whole) == 3


# Plans of cohorts


@given(
    ranks=st.lists(st.sampled_from([None, 2, 4]), max_size=30),
    size=st.one_of(st.just("auto"), st.integers(1, 12)),
    workers=st.integers(1, 4),
    tokens=st.integers(0, 4000),
    each=st.integers(0, 500),
)
def test_plan_has_every_client_once_in_order(ranks: list[Any], size: Any, workers: int, tokens: int, each: int) -> None:
    clients = [Client(f"c{i:02}", 1, rank) for i, rank in enumerate(ranks)]
    cohorts = divided(clients, size, workers=workers, cost=tokens, cost_per_client=each)
    assert sorted(c.id for cohort in cohorts for c in cohort) == [c.id for c in clients]
    limit = max(1, tokens // max(1, each)) if size == "auto" else size
    for rank in set(ranks):
        of_rank = [cohort for cohort in cohorts if cohort[0].rank == rank]
        assert [c for cohort in of_rank for c in cohort] == [c for c in clients if c.rank == rank]
        sizes = [len(cohort) for cohort in of_rank]
        assert 1 <= min(sizes) <= max(sizes) <= min(limit, min(sizes) + 1)
    assert [cohort for cohort in cohorts if len({c.rank for c in cohort}) != 1] == []
    firsts = [clients.index(cohort[0]) for cohort in cohorts]
    assert firsts == sorted(firsts)


@given(ranks=st.lists(st.integers(1, 4), max_size=40), size=st.integers(1, 12))
def test_answers_come_in_client_order_and_few_wait(ranks: list[int], size: int) -> None:
    clients = [Client(f"c{i:02}", 1, rank) for i, rank in enumerate(ranks)]
    cohorts = divided(clients, size, workers=1, cost=1, cost_per_client=1)
    made: list[Client] = []

    def train() -> Iterator[list[Answer]]:
        for cohort in cohorts:
            made.extend(cohort)
            yield [Answer(c, None, {}, None, None) for c in cohort]

    given: list[Client] = []
    for answer in in_turn(train(), clients):
        given.append(answer.client)
        assert len(made) - len(given) <= 4 * size
    assert given == clients


def test_auto_gives_every_worker_a_cohort() -> None:
    clients = [Client(f"c{i}", 1) for i in range(10)]
    cohorts = divided(clients, "auto", workers=4, cost=10**6, cost_per_client=1)
    assert sorted(map(len, cohorts)) == [2, 2, 3, 3]
    assert [len(c) for c in divided(clients, "auto", workers=1, cost=10**6, cost_per_client=1)] == [10]
    assert [len(c) for c in divided(clients, "auto", workers=1, cost=400, cost_per_client=100)] == [3, 3, 4]
    assert divided([], "auto", workers=2, cost=1, cost_per_client=1) == []


# Threads


@pytest.mark.parametrize("count", [1, 2, 3])
def test_threaded_results_come_in_order_and_few_wait(count: int) -> None:
    lock, under_way, worst = threading.Lock(), 0, 0

    def items() -> Iterator[int]:
        nonlocal under_way, worst
        for i in range(12):
            with lock:
                under_way += 1
                worst = max(worst, under_way)
            yield i

    def work(i: int) -> int:
        assert count == 1 or torch.get_num_threads() == 1
        time.sleep(0.002 * ((i * 5) % 4))
        return i * i

    before = torch.get_num_threads()
    results = []
    for result in in_order(work, items(), count):
        results.append(result)
        with lock:
            under_way -= 1
    assert results == [i * i for i in range(12)]
    assert worst <= count
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("count", [1, 2])
def test_worker_exception_reaches_the_caller(count: int) -> None:
    def work(i: int) -> int:
        if i == 3:
            raise KeyError("three")
        return i

    received, before = [], torch.get_num_threads()
    with pytest.raises(KeyError, match="three"):
        received += list(in_order(work, range(9), count))
    results = in_order(work, range(9), count)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(KeyError):
        next(results)
    assert torch.get_num_threads() == before
    assert not [t for t in threading.enumerate() if t.name.startswith("rondo-cohort")]


def test_callers_thread_count_is_restored() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert list(in_order(lambda i: i, range(5), 2)) == list(range(5))
        assert torch.get_num_threads() == 2
        unfinished = in_order(lambda i: i, range(5), 2)
        next(unfinished)
        unfinished.close()  # type: ignore[attr-defined]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# Memory


def test_bytes_per_token_grow_with_the_model() -> None:
    def measured(make_model: Callable[[], Any], endings: tuple[str, ...]) -> float:
        module = make_model()
        sites = tiny.sites(module, endings)
        network = AdaptedNetwork(module, sites, tiny.head_names(module))
        seen = tiny.factors(sites, 1, dtype=torch.float32) | tiny.head_of(network, 2)
        return activation_bytes(network, Task(), seen, examples("ann", 2, length=9))

    one = measured(tiny.bert, ("layer.1.attention.self.query",))
    all_layers = measured(tiny.bert, ("query",))
    double = measured(lambda: tiny.bert().double(), ("query",))
    assert 0 < one < all_layers < double


def test_bytes_per_token_are_of_padded_rows() -> None:
    """Short rows beside a long one keep as much as it does: a step computes their padding too."""
    module = tiny.bert()
    sites = tiny.sites(module, ("query",))
    network = AdaptedNetwork(module, sites, tiny.head_names(module))
    seen = tiny.factors(sites, 1, dtype=torch.float32) | tiny.head_of(network, 2)
    long = examples("ann", 4, length=16)
    ragged = [*examples("bob", 3, length=2), long[0]]
    even, uneven = (activation_bytes(network, Task(), seen, rows) for rows in (long, ragged))
    assert uneven == pytest.approx(even, rel=0.1)


@pytest.mark.slow
def test_measuring_memory_keeps_no_reference_to_the_model() -> None:
    """A graph that keeps its saved tensors as they are holds itself, and the frozen weights, until the process ends."""
    module = tiny.bert()
    sites = tiny.sites(module, ("query",))
    network = AdaptedNetwork(module, sites, tiny.head_names(module))
    seen = tiny.factors(sites, 1, dtype=torch.float32) | tiny.head_of(network, 2)
    assert activation_bytes(network, Task(), seen, examples("ann", 2, length=9)) > 0
    weights = [weakref.ref(p) for p in module.parameters()]
    factors = [weakref.ref(t) for t in seen.values()]
    del module, network, seen
    gc.collect()
    assert [ref for ref in weights + factors if ref() is not None] == []
