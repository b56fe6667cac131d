"""Rehearsed faults: each has its reason, and the round is that of the remaining clients."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import pytest

from records import timeless
from rondo.algorithm import Client, Round
from rondo.config import ConfigError, RunConfig, load
from rondo.engine.client.local_round import LocalRound
from rondo.engine.faults import KINDS, REHEARSED, Rehearsal, fault_of
from rondo.engine.transport import Answer, Turnout, Work
from rondo.engine.wire import serialization
from rondo.engine.wire.envelope import Identity
from rondo.privacy.sums import sum as sums
from rondo.privacy.sums.sum import sample
from rondo.tasks.language.text import TextExample
from tiny_federation import ALLOWED, ALONE, NAMES, POISON, SIZES, config, make, population
from watched import planted

FOUR = {**SIZES, "dee": 5}

EXPECTED = {
    "crash": "crash",
    "hang": "hang",
    "slow": "deadline",
    "out_of_memory": "out_of_memory",
    "nonfinite_loss": "nonfinite_loss",
    "corrupt_upload": "corrupt",
    "late": "round_closed",
    "wrong_round": "wrong_round",
}
"""The reason for which a client is lost, by kind of fault."""

GATED = ("corrupt_upload", "late", "wrong_round", "duplicate")
"""Faults of an upload, which admission counts."""


def faulty(kind: str, who: Sequence[str], **clients: Any) -> RunConfig:
    # Every client takes a second per example, at most 9 in all; a slow one takes ten times as long.
    deadline = {"deadline": 9.5} if kind == "slow" else {}
    return config(faults={kind: list(who)}, clients={**deadline, **clients})


@pytest.mark.parametrize(
    ("kind", "name", "policy"),
    # Every kind with every algorithm, and every algorithm with every head policy. In the default run every kind comes
    # with an eighth of the algorithms.
    [
        pytest.param(
            kind, name, ALLOWED[name][(i + j) % len(ALLOWED[name])], marks=() if (i + j) % 8 == 0 else pytest.mark.slow
        )
        for i, kind in enumerate(EXPECTED)
        for j, name in enumerate(NAMES)
    ],
)
@pytest.mark.sweep(3)
def test_faulty_client_leaves_no_trace(kind: str, name: str, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The round and the next equal, bit for bit, rounds that never sampled the client."""
    people = population(FOUR)
    rehearsed, absent = make(name, policy, people=people, run=faulty(kind, ["bob"])), make(name, policy, people=people)
    records = [rehearsed.run_round(t) for t in range(2)]
    monkeypatch.setattr(sums, "sample", lambda *a: [c for c in sample(*a) if c.id != "bob"])
    expected = [absent.run_round(t) for t in range(2)]
    for record, other in zip(records, expected, strict=True):
        (failure,) = record["failed"]
        assert (failure["client"], failure["reason"]) == ("bob", EXPECTED[kind])
        assert record["rejected"] == ({EXPECTED[kind]: 1} if kind in GATED else {})
        assert (record["sampled"], other["sampled"]) == (4, 3)
        same = ("clients", "loss", "lr", "bytes_up", "skipped")
        assert [record[key] for key in same] == [other[key] for key in same]
    assert serialization.same(rehearsed.state, absent.state)
    assert serialization.same(rehearsed.locals, absent.locals)


@pytest.mark.parametrize("run", [config(), ALONE], ids=["in cohorts", "alone"])
@pytest.mark.parametrize("name", ["fedit", "fedsa-lora"])
def test_rehearsed_training_faults_equal_real_ones(name: str, run: RunConfig) -> None:
    """In the whole record, bytes included, and in the state: the client is asked, and fails in its training."""
    real = {"nonfinite_loss": make(name, people=population(SIZES, poisoned=["bob"]), run=run)}
    real["out_of_memory"] = make(name, people=population(SIZES, poisoned=["bob"]), run=run)

    def before(rows: Sequence[TextExample]) -> None:
        if any(POISON in e.ids for e in rows):
            raise MemoryError(REHEARSED)

    for sim in real.values():
        sim.measure()  # before memory runs out, as a run does
    real["out_of_memory"].task.before = before
    for kind, sim in real.items():
        rehearsed = make(name, run=run.model_copy(update={"faults": faulty(kind, ["bob"]).faults}))
        rehearsed.measure()
        record, expected = rehearsed.run_round(0), sim.run_round(0)
        assert [f["reason"] for f in record["failed"]] == [kind]
        assert timeless(record) == timeless(expected)
        assert serialization.same(rehearsed.state, sim.state)
        assert serialization.same(rehearsed.locals, sim.locals)
        assert rehearsed.ledger.to_json() == sim.ledger.to_json()


def test_rehearsed_shortage_of_memory_halves_cohorts() -> None:
    sim, trained = make(run=faulty("out_of_memory", ["bob"])), list[list[str]]()
    train = LocalRound._train

    def noted(self: LocalRound, clients: tuple[Client, ...], *arguments: Any) -> list[Answer]:
        trained.append(ids(clients))
        return train(self, clients, *arguments)

    with planted(LocalRound, "_train", noted):
        sim.run_round(0)
    # The cohort is halved down to the client, and then trained again without it.
    assert trained == [["ann", "bob", "cid"], ["ann"], ["bob", "cid"], ["bob"], ["cid"], ["ann", "cid"]]


@pytest.mark.parametrize("name", ["fedit", "fedsa-lora"])
def test_duplicate_upload_counts_once(name: str) -> None:
    rehearsed, plain = make(name, run=faulty("duplicate", ["bob", "cid"])), make(name)
    record, expected = rehearsed.run_round(0), plain.run_round(0)
    assert (record["failed"], record["rejected"]) == ([], {"duplicate": 2})
    assert timeless({**record, "rejected": {}}) == timeless(expected)
    assert serialization.same(rehearsed.state, plain.state)


@pytest.mark.parametrize(("hit", "skipped"), [(["ann"], False), (["ann", "bob"], False), (list(FOUR), True)])
@pytest.mark.parametrize("kind", EXPECTED)
@pytest.mark.sweep(3)
def test_one_most_or_all_clients_may_be_lost(kind: str, hit: list[str], skipped: bool) -> None:
    """One client, all but ``min_clients``, or all; only the loss of all skips the round."""
    sim = make(people=population(FOUR), run=faulty(kind, hit, min_clients=2))
    before = serialization.pack(sim.state)
    record = sim.run_round(0)
    assert {f["client"]: f["reason"] for f in record["failed"]} == dict.fromkeys(hit, EXPECTED[kind])
    assert record["clients"] == 4 - len(hit)
    assert (record["skipped"] is not None, serialization.pack(sim.state) == before) == (skipped, skipped)


# Arrival in time

PEOPLE = tuple(Client(f"c{i}", 10 + i) for i in range(8))
ROUND = Round(3, 9, 7, 8)


class Everyone:
    """A transport that loses no client."""

    def expected(self, clients: Sequence[Client], round: Round, failed: Collection[str]) -> Turnout:
        return Turnout(tuple(c for c in clients if c.id not in failed))


def turnout(run: RunConfig, clients: Sequence[Client], round: Round, failed: Collection[str] = ()) -> Turnout:
    return Rehearsal(Everyone(), run, Identity("simulation", "")).expected(clients, round, failed)  # type: ignore[arg-type]


def ids(clients: Sequence[Client]) -> list[str]:
    return [c.id for c in clients]


def test_all_clients_count_without_faults_and_deadlines() -> None:
    assert turnout(config(), PEOPLE, ROUND) == Turnout(PEOPLE)


def test_first_arrivals_count_and_spares_replace_failures() -> None:
    run = config(clients={"per_round": 3, "over_select": 1.0})
    first = turnout(run, PEOPLE[:6], ROUND)
    assert ids(first.asked) == ["c0", "c1", "c2"]  # fewer examples arrive earlier
    assert {c: f.reason for c, f in first.lost.items()} == dict.fromkeys(("c3", "c4", "c5"), "round_closed")
    second = turnout(run, PEOPLE[:6], ROUND, ["c1"])
    assert ids(second.asked) == ["c0", "c2", "c3"]
    crashed = turnout(config(clients=run.clients.model_dump(), faults={"crash": ["c0", "c2"]}), PEOPLE[:6], ROUND)
    assert ids(crashed.asked) == ["c1", "c3", "c4"]
    assert {c: f.reason for c, f in crashed.lost.items()} == {"c0": "crash", "c2": "crash", "c5": "round_closed"}


def test_equally_fast_clients_take_turns() -> None:
    run = config(clients={"per_round": 1, "over_select": 1.0})
    clients = [Client("a", 5), Client("b", 5)]
    winners = [ids(turnout(run, clients, Round(t, 200, 0, 2)).asked)[0] for t in range(200)]
    assert 70 < winners.count("a") < 130


def test_deadline_counts_seconds_per_example() -> None:
    run = config(clients={"deadline": 24.0}, faults={"seconds_per_example": 2.0, "hang": ["c0"]})
    arrived = turnout(run, PEOPLE, ROUND)
    assert ids(arrived.asked) == ["c1", "c2"]  # 22 and 24 seconds: a client may take the deadline itself
    assert str(arrived.lost["c3"]) == "client c3: deadline (26 s, waited for 24 s)"
    assert str(arrived.lost["c0"]) == "client c0: deadline (it never ended, waited for 24 s)"
    steps = config(clients={"deadline": 25.0}, train={"local_steps": 3, "local_epochs": None, "batch_size": 8})
    assert len(turnout(steps, PEOPLE, ROUND).asked) == 8  # 24 examples each


def test_over_selection_samples_spares(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more clients count than without it."""
    people = population({f"c{i}": 4 + i for i in range(6)})
    sim = make(people=people, run=config(clients={"per_round": 2, "over_select": 0.5}))
    record = sim.run_round(0)
    assert (record["sampled"], record["clients"], len(record["failed"])) == (3, 2, 1)
    assert record["failed"][0]["reason"] == "round_closed"


def test_spare_replaces_a_client_that_failed_in_training() -> None:
    sizes = {"ann": 4, "bob": 6, "cid": 9}
    sim = make(people=population(sizes, poisoned=["bob"]), run=config(clients={"per_round": 2, "over_select": 0.5}))
    record = sim.run_round(0)
    assert (record["sampled"], record["clients"]) == (3, 2)
    assert [(f["client"], f["reason"]) for f in record["failed"]] == [("bob", "nonfinite_loss")]


# Draws


def test_fault_rates_match_the_configuration() -> None:
    faults = config(faults={"crash": 0.1, "corrupt_upload": 0.2, "late": ["c7"]}).faults
    draws = [fault_of(faults, c, Round(t, 500, 1, 8)) for t in range(500) for c in PEOPLE[:7]]
    share = {kind: draws.count(kind) / len(draws) for kind in ("crash", "corrupt_upload", None)}
    # 3,500 draws: standard errors of at most 0.008.
    assert share == pytest.approx({"crash": 0.1, "corrupt_upload": 0.2, None: 0.7}, abs=0.03)
    assert [t for t in range(20) if fault_of(faults, PEOPLE[7], Round(t, 500, 1, 8)) != "late"] == []
    assert fault_of(faults, PEOPLE[0], ROUND) == fault_of(faults, PEOPLE[0], ROUND)


def test_every_fault_kind_is_a_configuration_key() -> None:
    assert set(EXPECTED) | {"duplicate"} == set(KINDS)
    assert [kind for kind in KINDS if getattr(load({}).faults, kind) != 0] == []


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"faults": {"crash": 0.6, "late": 0.6}}, "the probabilities of crash, late sum to 1.2"),
        ({"faults": {"slow": 0.5}}, "faults.slow: slow clients are waited for: set clients.deadline"),
        ({"faults": {"crash": 1.5}}, "faults.crash: "),
        ({"clients": {"over_select": 0.5}}, "clients.over_select: it goes beyond clients.per_round"),
        ({"admission": {"clip": True}}, "admission.clip: there is nothing to clip to"),
    ],
)
def test_senseless_settings_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(sections)


def test_refused_client_keeps_its_reason_when_its_upload_comes_twice() -> None:
    run = config(faults={"duplicate": ["bob"]}, admission={"max_norm": 1e-9}, clients={"min_clients": 1})
    record = make(run=run).run_round(0)
    assert {f["client"]: f["reason"] for f in record["failed"]} == dict.fromkeys(SIZES, "norm_exceeded")
    assert record["rejected"]["duplicate"] > 0
    assert record["skipped"] is not None


def test_client_that_never_answers_is_recorded() -> None:
    server = make().server
    inner = server.transport

    class Silent:
        expected, must_repeat = inner.expected, inner.must_repeat

        def exchange(self, round: Round, work: Work) -> Iterator[Answer]:
            return (answer for answer in inner.exchange(round, work) if answer.client.id != "bob")

    server.transport = Silent()  # type: ignore[assignment]
    record = server.run_round(0)
    assert [(f["client"], f["reason"]) for f in record["failed"]] == [("bob", "no_answer")]
    assert record["clients"] == len(SIZES) - 1
