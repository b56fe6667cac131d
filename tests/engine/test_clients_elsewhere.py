"""Clients elsewhere, as bytes: the same rounds as in a simulation, bit for bit, whatever is lost on the way."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from composed import Composed
from records import timeless
from rondo.algorithm import Client, Round, Shared
from rondo.algorithms.table import Rule
from rondo.algorithms.wrappers.robust import Robust
from rondo.data.population import Population
from rondo.engine.client.local_round import LocalRound
from rondo.engine.client.party import LOST, NONE, Holdings, Party
from rondo.engine.remote import RemoteScorer, RemoteTransport
from rondo.engine.server.ledger import Ledger
from rondo.engine.server.rounds import Server
from rondo.engine.wire import serialization
from rondo.engine.wire.envelope import Identity
from rondo.engine.wire.letters import Reply, Request
from rondo.engine.wire.parcel import Parcel, StartVersions, start_of
from rondo.engine.wire.strict import Rejected
from rondo.lowrank import GrowingSum
from rondo.params import num_bytes, pick
from rondo.privacy.sums.sum import SingleUploads
from rondo.runs.assembling.private import counted_by_the_server
from tiny_federation import ALONE, HEADS_OF_KINDS, SIZES, config, make, population

PARTIAL = config(simulation={"cohort": 1}, clients={"per_round": 2})


@dataclass
class Post:
    """A messenger to parties in this process. ``on_way`` may change, lose or double the replies of a client."""

    parties: dict[str, Party]
    on_way: Callable[[str, bytes], list[bytes]] = lambda client, reply: [reply]
    absent: set[str] = field(default_factory=set)
    letters: list[tuple[str, bytes]] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)

    def present(self) -> dict[str, int]:
        return {c: party.member.client.num_examples for c, party in self.parties.items() if c not in self.absent}

    def gather(self, drawn: Collection[str], least: int) -> None:
        """It does not wait: who is absent stays so."""

    def send(self, client: str, data: bytes, largest: int) -> None:
        request = Request.decode(data)
        self.sent[client] = self.sent.get(client, 0) + request.parcel.num_bytes
        reply = self.parties[client].reply(request).encode()
        assert len(reply) <= largest
        # The last to be asked is the first to answer.
        self.letters[:0] = [(client, letter) for letter in self.on_way(client, reply)]

    def replies(self) -> Iterator[tuple[str, bytes]]:
        while self.letters:
            yield self.letters.pop(0)


def federation(sim: Composed) -> tuple[Server, Post]:
    """A server and its clients elsewhere, from the parts of a simulation."""
    parties, first = {}, sim.state

    def start(client: Client) -> Shared:
        return start_of(sim.algorithm, first, client.rank, sim.assembly.round(0))

    for name, member in sim.population.members.items():
        kept: dict[str, Any] = {}
        local = LocalRound(sim.algorithm, sim.network, sim.task, sim.config, kept, counted_by_the_server)
        scorer = replace(sim.scorer, kept=kept)
        parties[name] = Party(member, sim.identity.model, local, scorer, kept, lambda answer: None, start)
    post = Post(parties)
    clients, sites = sim.population.clients, sim.network.sites
    transport = RemoteTransport(post, sim.identity, 1)
    server = Server(
        sim.algorithm,
        sim.config,
        clients,
        transport,
        SingleUploads(sim.config.clients),
        None,
        sites,
        sim.identity,
        sim.initial,
        sim.state,
        {},
        ledger=sim.ledger,
    )
    return server, post


def elsewhere(sim: Composed, server: Server) -> RemoteScorer:
    """The scorer of a server's clients, from the scorer of a simulation, of whose clients it only knows the names."""
    transport = server.transport
    assert isinstance(transport, RemoteTransport)
    parts = sim.scorer
    return RemoteScorer(
        parts.algorithm,
        parts.network,
        parts.task,
        replace(parts.population, members={}),
        {},
        parts.config,
        parts.fitting,
        parts.prefix,
        parts.least,
        server,
        transport,
    )


def settled(post: Post) -> dict[str, Any]:
    """What each client keeps once it knows that its last attempt counted."""
    last = {p.id: p.pending[1] for p in post.parties.values() if p.pending is not None and p.pending[1]}
    return {name: last.get(name, party.kept.get(name)) for name, party in post.parties.items()}


@pytest.mark.parametrize(("name", "policy"), HEADS_OF_KINDS)
@pytest.mark.sweep(3)
def test_network_equals_the_simulation(name: str, policy: Any) -> None:
    sim = make(name, policy, run=PARTIAL)
    other = make(name, policy, run=PARTIAL)
    server, post = federation(other)
    scorer = elsewhere(other, server)
    for index in range(4):
        before = dict(post.sent)
        expected, record = sim.run_round(index), server.run_round(index)
        assert timeless(record) == timeless(expected)
        assert serialization.same(server.state, sim.state), f"round {index}"
        assert sum(post.sent.values()) - sum(before.values()) == record["bytes_down"]
        after = sim.round(index + 1)
        assert scorer.at_clients(server.state, after) == sim.scorer.at_clients(sim.state, after)
    kept = {c: sim.locals.get(c) for c in SIZES}
    assert serialization.same(settled(post), kept)
    assert server.ledger.held == sim.ledger.held


@pytest.mark.parametrize(("name", "rule"), [("fedit", "krum"), ("fedit", "nnm-trimmed-mean"), ("flexlora", "clip")])
def test_rules_and_a_clip_act_on_bytes_as_on_objects(name: str, rule: Rule) -> None:
    """safetensors gives an upload's tensors in another order each time."""
    run = config(simulation={"cohort": 1}, admission={"max_norm": 0.05, "clip": True})
    sim, other = make(name, run=run), make(name, run=run)
    sim.algorithm, other.algorithm = Robust(sim.algorithm, rule, 1), Robust(other.algorithm, rule, 1)
    server, _ = federation(other)
    for index in range(3):
        sim.run_round(index)
        server.run_round(index)
        assert serialization.same(server.state, sim.state), f"round {index}"


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ["fedsa-lora", "flora", "fedloru", "rolora"])
def test_server_goes_on_from_its_checkpoint_and_clients_with_it(name: str) -> None:
    """It dies after clients trained a round that it had not written, and once more with a client's disk."""
    sim = make(name, run=ALONE)
    server, post = federation(make(name, run=ALONE))
    for index in range(4):
        sim.run_round(index)
        saved = serialization.pack(server.state), server.ledger.to_json(), server.aggregated
        server.run_round(index)  # is lost
        if index == 2:
            post.parties["ann"].holdings = Holdings()
        state = serialization.unpack(saved[0], server.state)
        server = replace(server, state=state, ledger=Ledger.from_json(saved[1]), aggregated=saved[2], kept={})
        server.run_round(index)
        assert serialization.same(server.state, sim.state), f"round {index}"
    assert serialization.same(settled(post), {c: sim.locals.get(c) for c in SIZES})


def test_client_with_an_empty_disk_is_sent_everything_once() -> None:
    sim = make("ffa-lora", run=ALONE)
    server, post = federation(make("ffa-lora", run=ALONE))
    for index in range(3):
        if index == 2:
            post.parties["bob"].holdings = Holdings()
        before = dict(post.sent)
        sim.run_round(index)
        record = server.run_round(index)
        assert record["failed"] == []
        assert serialization.same(server.state, sim.state)
    own = {c: post.sent[c] - before[c] for c in SIZES}
    assert own["bob"] > 2 * own["ann"], "what was sent in vain, and everything again"
    assert record["bytes_down"] == sum(own.values())


# --- states of another time ---------------------------------------------------------------------------------------


def copied(party: Party) -> dict[str, Any]:
    """The state of ``party``, as a backup has it."""
    state = {"holdings": replace(party.holdings), "pending": party.pending, "counted": party.counted}
    return {**state, "kept": dict(party.kept)}


def brought_back(party: Party, state: dict[str, Any]) -> None:
    party.holdings, party.pending, party.counted = state["holdings"], state["pending"], state["counted"]
    party.kept.clear()
    party.kept.update(state["kept"])


EMPTY: dict[str, Any] = {"holdings": Holdings(), "pending": None, "counted": NONE, "kept": {}}


@pytest.mark.parametrize("name", ["fedsa-lora", "fedit"])
@pytest.mark.parametrize("empty", [False, True])
def test_client_older_than_its_server_is_refused(name: str, empty: bool) -> None:
    """It would train on its tensors of a round long past, or on none, and the run would end otherwise."""
    server, post = federation(make(name, run=ALONE))
    server.run_round(0)
    bob = post.parties["bob"]
    state, later = EMPTY if empty else copied(bob), server.run_round(1)
    assert later["failed"] == []
    brought_back(bob, state)
    (failed,) = server.run_round(2)["failed"]
    own = "empty" if empty else "older, of round 1"
    assert failed["client"] == "bob"
    assert f"the server counts on round 2, and the site's folder is {own}" in failed["detail"]
    assert copied(bob) == state | {"kept": bob.kept}
    bob.kept.clear()
    bob.holdings, bob.pending, bob.counted = Holdings(), None, LOST
    assert server.run_round(3)["failed"] == []
    assert bob.counted == 1
    assert server.run_round(4)["failed"] == []


@pytest.mark.parametrize("name", ["fedsa-lora", "fedit"])
@pytest.mark.parametrize("counts", [True, False])
def test_server_that_went_back_is_refused(name: str, counts: bool) -> None:
    """Its clients keep what they have learned since, which no round of the server's begins with. Rounds that did not
    count leave that: the server has forgotten what was spent in them."""
    server, post = federation(make(name, run=ALONE))
    server.run_round(0)
    saved = serialization.pack(server.state), server.ledger.to_json(), server.aggregated
    if not counts:
        post.on_way = lambda client, reply: []
    for index in (1, 2):
        server.run_round(index)
    post.on_way = lambda client, reply: [reply]
    before = {name: copied(party) for name, party in post.parties.items()}
    state = serialization.unpack(saved[0], server.state)
    server = replace(server, state=state, ledger=Ledger.from_json(saved[1]), aggregated=saved[2], kept={})
    record = server.run_round(1)
    assert record["clients"] == 0
    assert {f["detail"][1:58] for f in record["failed"]} == {
        "the server went back to before round 3: bring its newer r"
    }
    assert {name: copied(party) for name, party in post.parties.items()} == before


def test_client_of_another_time_has_no_scores() -> None:
    other = make("fedsa-lora", run=ALONE)
    server, post = federation(other)
    for index in range(2):
        server.run_round(index)
    brought_back(post.parties["bob"], EMPTY)
    scores = elsewhere(other, server).at_clients(server.state, server.round(2))
    assert [set(found["per_client"]) for found in scores.values()] == [{"ann", "cid"}] * len(scores)


# --- the start ----------------------------------------------------------------------------------------------------


def a_bit_off(tensor: Tensor) -> Tensor:
    """``tensor`` as another machine may compute it: the last bit of one number differs."""
    other = tensor.clone()
    other.view(-1)[0] = other.view(-1)[0].nextafter(torch.tensor(math.inf))
    return other


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("florg", {}),
        ("florg", {"bases": "svd", "offset": True}),
        ("ffa-lora", {}),
        ("fedsvd", {}),
        ("rolora", {}),
        ("federa", {}),
    ],
)
def test_client_makes_the_start_and_is_sent_no_tensor_of_it(name: str, fields: dict[str, Any]) -> None:
    sim, (server, post) = make(name, run=ALONE, **fields), federation(make(name, run=ALONE, **fields))
    for index in range(3):
        expected, record = sim.run_round(index), server.run_round(index)
        assert timeless(record) == timeless(expected)
        assert serialization.same(server.state, sim.state), f"round {index}"
        assert sum(post.sent.values()) == 0 or index > 0


def test_tensor_that_another_machine_makes_otherwise_is_sent() -> None:
    """And counts as first contact; all that is equal is not sent."""
    sim, (server, post) = make("florg", run=ALONE), federation(make("florg", run=ALONE))
    bob = post.parties["bob"]
    made = bob.start
    assert made is not None
    name = next(n for n in server.state.params if n.endswith(".L"))

    def elsewhere(client: Client) -> Shared:
        params = made(client).params
        return Shared({**params, name: a_bit_off(params[name])})

    bob.start = elsewhere
    for index in range(2):
        expected, record = sim.run_round(index), server.run_round(index)
        assert serialization.same(server.state, sim.state), f"round {index}"
        differing = num_bytes({name: server.state.params[name]}) if index == 0 else 0
        assert record["bytes_first_contact"] == differing
        assert record["bytes_down"] == expected["bytes_down"] + differing
        assert record["failed"] == []
    assert server.ledger.held == sim.ledger.held


def test_base_change_that_another_machine_makes_otherwise_is_sent() -> None:
    """A count of chunks alone would take it for the server's."""
    sim, (server, post) = make("federa", run=ALONE), federation(make("federa", run=ALONE))
    bob = post.parties["bob"]
    made = bob.start
    assert made is not None
    path = next(iter(server.state.base))

    def elsewhere(client: Client) -> Shared:
        shared = made(client)
        chunk = shared.base[path].recent
        return Shared(shared.params, {**shared.base, path: GrowingSum.of(replace(chunk, up=a_bit_off(chunk.up)))})

    bob.start = elsewhere
    for index in range(2):
        sim.run_round(index)
        record = server.run_round(index)
        assert serialization.same(server.state, sim.state), f"round {index}"
        assert record["bytes_first_contact"] == (post.sent["bob"] if index == 0 else 0)
    assert bob.holdings.base[path].count == 1
    assert serialization.same(bob.holdings.base[path].recent, server.state.base[path].recent)


def test_clients_of_each_rank_make_a_start_of_their_own() -> None:
    people = population(SIZES).members
    ranks = dict(zip(SIZES, (1, 2, 3), strict=True))
    cut = {name: replace(m, client=replace(m.client, rank=ranks[name])) for name, m in people.items()}
    run = config(simulation={"cohort": 1}, clients={"ranks": list(ranks.values())})
    parts = {"people": Population(cut, (), {}), "run": run}
    sim, (server, post) = make("hetlora", **parts), federation(make("hetlora", **parts))
    for index in range(2):
        expected, record = sim.run_round(index), server.run_round(index)
        assert timeless(record) == timeless(expected)
        assert serialization.same(server.state, sim.state)
        assert (sum(post.sent.values()) == 0) == (index == 0)


@pytest.mark.parametrize(("name", "fixed"), [("florg", ".L .R"), ("ffa-lora", ".A"), ("federa", "")])
def test_late_client_is_sent_what_rounds_have_changed(name: str, fixed: str) -> None:
    """Also by a server that went on from its checkpoint in the meantime, and whose first state is gone."""
    sim, (server, post) = make(name, run=ALONE), federation(make(name, run=ALONE))
    post.absent = {"cid"}
    for index in range(3):
        if index == 2:
            post.absent = set()
            state = serialization.unpack(serialization.pack(server.state), server.state)
            server = replace(server, state=state, ledger=Ledger.from_json(server.ledger.to_json()))
        record = server.run_round(index)
        assert record["clients"] == (3 if index == 2 else 2)
    moved = pick(sim.state.params, lambda n: not n.endswith(tuple(fixed.split()) or "none"))
    assert post.sent["cid"] == num_bytes(moved) == record["bytes_first_contact"]


@pytest.mark.parametrize("name", ["florg", "fedsvd", "federa"])
def test_client_that_lost_its_disk_makes_the_start_again(name: str) -> None:
    sim, (server, post) = make(name, run=ALONE), federation(make(name, run=ALONE))
    start = post.parties["bob"].start
    for index in range(3):
        if index == 2:
            post.parties["bob"].holdings, post.parties["bob"].start = Holdings(), start
        before = dict(post.sent)
        sim.run_round(index)
        record = server.run_round(index)
        assert record["failed"] == []
        assert serialization.same(server.state, sim.state), f"round {index}"
    sent = {c: post.sent[c] - before[c] for c in SIZES}
    fixed = num_bytes(pick(server.state.params, lambda n: n.endswith((".L", ".R"))))
    assert fixed == 0 or sent["bob"] < 3 * sent["ann"] < fixed
    assert record["bytes_down"] == sum(sent.values())


def test_client_that_is_only_scored_is_sent_no_tensor_that_it_makes() -> None:
    run = config(simulation={"cohort": 1}, clients={"per_round": 1})
    sim, other = make("florg", run=run), make("florg", run=run)
    server, post = federation(other)
    for index in range(3):
        sim.run_round(index)
        server.run_round(index)
        after = sim.round(index + 1)
        assert elsewhere(other, server).at_clients(server.state, after) == sim.scorer.at_clients(sim.state, after)
        assert serialization.same(server.state, sim.state), f"round {index}"
    fixed = num_bytes(pick(server.state.params, lambda n: n.endswith((".L", ".R"))))
    assert max(post.sent.values()) < fixed


def lost(reply: bytes) -> list[bytes]:
    return []


def garbage(reply: bytes) -> list[bytes]:
    return [b"\xff" * 40]


def damaged(reply: bytes) -> list[bytes]:
    return [reply[:-1] + bytes([reply[-1] ^ 1])]


def always_lacking(reply: bytes) -> list[bytes]:
    return [Reply(held={"nothing": "at all"}).encode()]


def failing(reply: bytes) -> list[bytes]:
    return [Reply(reason="out_of_memory", detail="7 GB\x1b[31m").encode()]


def inventing(reply: bytes) -> list[bytes]:
    return [Reply(reason="\x1b[31m" + 500 * "x").encode()]


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        (lost, "no_answer"),
        (garbage, "unreadable"),
        (damaged, "corrupt"),
        (always_lacking, "lacking"),
        (failing, "out_of_memory"),
        (inventing, "failed"),
    ],
)
def test_lost_client_leaves_no_trace(way: Any, reason: str) -> None:
    """The round equals, bit for bit, one that never sampled the client."""
    server, post = federation(make("rolora", "local", run=ALONE))
    without, other = federation(make("rolora", "local", run=ALONE))
    post.on_way = lambda client, reply: way(reply) if client == "bob" else [reply]
    other.absent = {"bob"}
    for index in range(2):
        record, expected = server.run_round(index), without.run_round(index)
        assert [(f["client"], f["reason"]) for f in record["failed"]] == [("bob", reason)]
        assert [(f["client"], f["reason"]) for f in expected["failed"]] == [("bob", "absent")]
        assert [f["detail"] for f in record["failed"] if not f["detail"].isprintable()] == []
        assert serialization.same(server.state, without.state)


def test_answers_that_come_twice_count_once() -> None:
    server, post = federation(make("rolora", run=ALONE))
    plain, _ = federation(make("rolora", run=ALONE))
    post.on_way = lambda client, reply: [reply, reply]
    for index in range(2):
        assert server.run_round(index)["clients"] == plain.run_round(index)["clients"] == 3
    assert serialization.same(server.state, plain.state)


def test_round_ends_once_enough_clients_have_answered() -> None:
    """The last to be asked are the first to answer; the rest come too late, and no answer without an upload counts."""
    server, post = federation(make("rolora", run=ALONE))
    assert isinstance(server.transport, RemoteTransport)
    server.transport.enough = 2
    record = server.run_round(0)
    assert [(f["client"], f["reason"]) for f in record["failed"]] == [("ann", "no_answer")]
    post.letters.clear()
    post.on_way = lambda client, reply: failing(reply) if client == "cid" else [reply]
    record = server.run_round(1)
    assert [(f["client"], f["reason"]) for f in record["failed"]] == [("cid", "out_of_memory")]


def test_client_cannot_send_in_anothers_name() -> None:
    server, post = federation(make("rolora", run=ALONE))
    ann = post.parties["ann"]

    def swapped(client: str, reply: bytes) -> list[bytes]:
        """Bob's letter is Ann's upload."""
        return [last["ann"]] if client == "bob" else [last.setdefault(client, reply)]

    last: dict[str, bytes] = {}
    post.on_way = swapped
    record = server.run_round(0)
    assert record["rejected"] == {"wrong_client": 1}
    assert [(f["client"], f["reason"]) for f in record["failed"]] == [("bob", "wrong_client")]
    assert record["clients"] == 2, "Ann's own upload counts"
    assert ann.pending is not None


@pytest.mark.parametrize("name", ["rolora", "fedsa-lora", "per-fedavg"])
def test_clients_score_themselves_and_hostile_scores_are_dropped(name: str) -> None:
    run = config(simulation={"cohort": 1}, evaluation={"fine_tune_epochs": 1})
    sim, other = make(name, run=run), make(name, run=run)
    server, post = federation(other)
    scorer, after = elsewhere(other, server), sim.round(0)
    expected = sim.scorer.at_clients(sim.state, after)
    assert expected, "clients have validation rows"
    assert scorer.at_clients(server.state, after) == expected
    kind, metric = scorer.kinds[0], scorer.task.primary
    own = {k: expected[k]["per_client"]["bob"] for k in scorer.kinds}
    surplus = {k: {**scores, "b" * 999: 1.0} for k, scores in own.items()}
    for false in ({}, {kind: {metric: 1.0}}, {k: {} for k in scorer.kinds}, {"other": {metric: 1.0}}, surplus):
        post.on_way = lambda client, reply, false=false: [Reply(scores=false).encode() if client == "bob" else reply]  # type: ignore[misc]
        scores = scorer.at_clients(server.state, after)
        assert scores[kind]["per_client"].keys() == {"ann", "cid"}
    post.on_way, post.absent = lambda client, reply: [reply], {"ann"}
    assert scorer.at_clients(server.state, after)[kind]["per_client"].keys() == {"bob", "cid"}


def test_client_that_is_scored_keeps_nothing_of_it() -> None:
    """A server that dies after scores of a round that is not on its disk goes back, and its clients with it."""
    sim, other = make("fedsa-lora", run=ALONE), make("fedsa-lora", run=ALONE)
    server, _ = federation(other)
    for index in range(3):
        saved = serialization.pack(server.state), server.ledger.to_json(), server.aggregated
        server.run_round(index)
        elsewhere(other, server).at_clients(server.state, server.round(index + 1))  # and then the machine stops
        state = serialization.unpack(saved[0], server.state)
        server = replace(server, state=state, ledger=Ledger.from_json(saved[1]), aggregated=saved[2], kept={})
        server.run_round(index)
        sim.run_round(index)
        assert serialization.same(server.state, sim.state), f"round {index}"


def request(**options: Any) -> bytes:
    plain = Request(make().identity, Round(0, 4, 5, 3), Client("ann", 4), Parcel({}, {}, {}))
    return replace(plain, **options).encode()


@pytest.mark.parametrize(
    ("options", "reason", "words"),
    [
        ({"protocol": 2}, "wrong_protocol", "2, and this side speaks 1"),
        ({"identity": Identity("x", "abc")}, "wrong_model", "the server's base model is abc, this client's "),
        ({"client": Client("bob", 4)}, "refused", "this is ann, not bob"),
    ],
)
def test_client_refuses_before_training(options: dict[str, Any], reason: str, words: str) -> None:
    _, post = federation(make("rolora", run=ALONE))
    reply = post.parties["ann"].reply(Request.decode(request(**options)))
    assert (reply.reason, reply.upload) == (reason, b"")
    assert words in reply.detail
    assert post.parties["ann"].pending is None


def test_request_survives_and_damage_does_not() -> None:
    data = request(counted=7)
    assert Request.decode(data).counted == 7
    for place in (0, 40, len(data) - 1):
        damaged = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(ValueError, match="do not have the digest"):
            Request.decode(damaged)
    with pytest.raises(ValueError, match="do not have the digest"):
        Request.decode(b"")


@pytest.mark.parametrize(
    "options",
    [
        *({name: value} for name in ("identity", "round", "client", "parcel") for value in (None, "text", {})),
        {"identity": Identity(7, "m")},  # type: ignore[arg-type]
        {"identity": Identity("r" * 1001, "m")},
        {"identity": Identity("run", "\ud800")},
        {"client": Client(None, 4)},  # type: ignore[arg-type]
        {"client": Client("ann", 4.0)},  # type: ignore[arg-type]
        {"client": Client("ann", 4, "2")},  # type: ignore[arg-type]
        {"round": Round(0, 4, True, 3)},
        {"round": Round(0, 4, 5, 3, init_lora_weights=None)},  # type: ignore[arg-type]
        {"parcel": Parcel([], {}, {})},  # type: ignore[arg-type]
        {"parcel": Parcel({}, (), {})},  # type: ignore[arg-type]
        {"parcel": Parcel({}, {}, "")},  # type: ignore[arg-type]
        {"parcel": Parcel({"a": 1}, {}, {})},  # type: ignore[dict-item]
        {"parcel": Parcel({}, {"a": 1.0}, {})},  # type: ignore[dict-item]
        {"parcel": Parcel({}, {}, {"m": 1})},  # type: ignore[dict-item]
        {"asked": True},
        {"protocol": "1"},
        {"counted": "7"},
        {"scores": 1},
    ],
    ids=str,
)
def test_request_with_values_of_other_types_is_none(options: dict[str, Any]) -> None:
    """A packed tree can have any value anywhere, and a site writes some of them to files."""
    with pytest.raises(ValueError, match="values of other types"):
        Request.decode(request(**options))


def test_longest_name_of_a_run_is_a_line() -> None:
    assert Request.decode(request(identity=Identity("r" * 1000, "m"))).identity.run == "r" * 1000


def test_scores_of_many_classes_with_long_names_arrive() -> None:
    """A site sends the F1 of each class, and a class has a name of up to a line."""
    scores = {"clients": {f"f1 of {'n' * 990}{number}": 0.5 for number in range(200)}}
    assert Reply.decode(Reply(scores=scores).encode()).scores == scores


GOOD = {"protocol": 1, "loss": None, "held": None, "scores": None, "reason": "", "detail": ""}


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"[]",
        b"{}",
        json.dumps(GOOD | {"protocol": 2}).encode(),
        json.dumps(GOOD | {"protocol": True}).encode(),
        json.dumps(GOOD | {"loss": "1"}).encode(),
        json.dumps(GOOD | {"loss": float("nan")}).encode(),
        json.dumps(GOOD | {"held": {"a": 1}}).encode(),
        json.dumps(GOOD | {"held": {"a": "x" * 33}}).encode(),
        json.dumps(GOOD | {"reason": None}).encode(),
        json.dumps(GOOD | {"more": 1}).encode(),
        json.dumps(GOOD).encode()[:-1] + b', "loss": 1.0}',
    ],
)
def test_malformed_reply_is_rejected(header: bytes) -> None:
    data = len(header).to_bytes(8, "little") + header
    with pytest.raises(Rejected):
        Reply.decode(data)
    with pytest.raises(Rejected):
        Reply.decode((2**63).to_bytes(8, "little") + header)


def test_ledger_with_starts_survives() -> None:
    ledger = Ledger(starts={None: StartVersions({"a.L": "x"}), 2: StartVersions({"base:m": "1"}, {"m": "yz"})})
    ledger.send("ann", Shared({"a.B": torch.ones(2)}), 2)
    again = Ledger.from_json(ledger.to_json())
    assert (again.starts, again.held) == (ledger.starts, ledger.held)
    with pytest.raises(ValueError, match="not a ledger: base:m has"):
        Ledger.from_json(ledger.to_json().replace(b'"1 base:m"', b'"-1 base:m"'))


def test_ledger_with_attempts_that_counted_survives() -> None:
    ledger = Ledger(counted={"ann": 3})
    assert Ledger.from_json(ledger.to_json()).counted == {"ann": 3}
    assert b"counted" not in Ledger().to_json()


def test_impossible_number_of_chunks_is_not_believed() -> None:
    ledger = Ledger({"ann": {"base:m": "2", "base:n": "3", "a.A": "y"}})
    ledger.believe("ann", {"base:m": "-1", "base:n": "4", "a.A": "x"})
    assert ledger.held["ann"] == {"base:n": "4", "a.A": "x"}
