"""Populations of many: examples in flat arrays, members made on demand, what clients keep read on demand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rondo.algorithm import Client, Shared
from rondo.data.population import Members, Population
from rondo.data.stored import Stored
from rondo.engine.server.ledger import Ledger
from rondo.tasks.token_store import TextExample, TokenStore

IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=12).map(tuple)


@st.composite
def rows(draw: st.DrawFn) -> list[TextExample]:
    """Rows of one run: all of classes or all of sequences, all with segments or all without."""
    language, segments = draw(st.booleans()), draw(st.booleans())
    found = []
    for ids in draw(st.lists(IDS, max_size=8)):
        tokens, label = draw(st.lists(st.integers(-100, 2**31 - 1), max_size=5)), draw(st.integers(0, 1000))
        kinds = draw(st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids)).map(tuple))
        found.append(TextExample(ids, tuple(tokens) if language else label, kinds if segments else None))
    return found


@given(rows(), st.integers(0, 8))
def test_a_store_gives_back_what_it_was_given(examples: list[TextExample], split: int) -> None:
    store = TokenStore()
    numbers = [*store.add(examples[:split]), *store.add(examples[split:])]
    assert [store[n] for n in numbers] == examples
    assert [store.cost(n) for n in numbers] == [e.cost for e in examples]
    share = Stored(store, reversed(numbers))
    assert list(share) == examples[::-1]
    assert list(share[1:3]) == examples[::-1][1:3]
    assert share.costliest == max((e.cost for e in examples), default=0)


def test_an_example_that_is_not_there_raises() -> None:
    store = TokenStore()
    share = Stored(store, store.add([TextExample((1, 2), 0), TextExample((3,), 1)]))
    assert share[-1] == TextExample((3,), 1)
    with pytest.raises(IndexError):
        share[2]


def test_members_are_a_mapping_of_their_clients() -> None:
    store = TokenStore()
    numbers = store.add(TextExample((n,), n) for n in range(6))
    members = Members(store)
    members.add("ann", numbers[:2], [2])
    members.add("bob", [4], [])
    members.add("cid", [5, 3], [0])
    assert list(members) == ["ann", "bob", "cid"]
    assert {n: [e.target for e in m.train] for n, m in members.items()} == {"ann": [0, 1], "bob": [4], "cid": [5, 3]}
    assert {n: [e.target for e in m.validation] for n, m in members.items()} == {"ann": [2], "bob": [], "cid": [0]}
    clients = Population(members, (), {}).clients
    assert list(clients) == [Client("ann", 2), Client("bob", 1), Client("cid", 2)]
    assert clients[-1] == Client("cid", 2)
    assert list(clients[1:]) == [Client("bob", 1), Client("cid", 2)]
    for unknown in ("", "b", "zoe"):
        assert unknown not in members
        with pytest.raises(KeyError):
            members[unknown]


def test_members_may_have_ranks_of_their_own() -> None:
    store = TokenStore()
    numbers = store.add([TextExample((i,), i) for i in range(3)])
    members = Members(store)
    members.add("ann", numbers[:2], [], 2)
    members.add("bob", numbers[2:], [], 4)
    assert list(Population(members, (), {}).clients) == [Client("ann", 2, 2), Client("bob", 1, 4)]


def test_clients_that_hold_the_same_share_one_record() -> None:
    ledger = Ledger()
    first, second = (Shared({"w": torch.full((4,), v)}, {}) for v in (1.0, 2.0))
    for client in ("ann", "bob"):
        assert ledger.send(client, first) == (16, 16)
    assert ledger.held["ann"] is ledger.held["bob"]
    assert ledger.send("ann", second) == (16, 0)
    assert ledger.held["ann"] is not ledger.held["bob"]
    assert ledger.send("bob", first) == (0, 0)
    assert ledger.send("bob", second) == (16, 0)
    assert ledger.held["ann"] is ledger.held["bob"]


def test_records_of_past_rounds_do_not_pile_up() -> None:
    ledger = Ledger()
    for number in range(3000):
        ledger.send("ann", Shared({"w": torch.tensor([float(number)])}, {}))
    assert ledger.send("ann", Shared({"w": torch.tensor([2999.0])}, {})) == (0, 0)
    assert len(ledger._known) < 1100
