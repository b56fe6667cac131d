"""Large populations: examples in flat arrays, members made on demand, and the ledger's shared records."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rondo.algorithm import Client, Round, Shared
from rondo.data import population as data_population
from rondo.data.members import Members, Stored
from rondo.data.population import Population, _encoded, _split
from rondo.engine.server.ledger import Ledger
from rondo.tasks.language.text import TextExample, TokenStore

IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=12).map(tuple)


@st.composite
def rows(draw: st.DrawFn) -> list[TextExample]:
    """Rows of one run: all with classes or all with sequences, all with segments or all without."""
    language, segments = draw(st.booleans()), draw(st.booleans())
    examples = []
    for ids in draw(st.lists(IDS, max_size=8)):
        tokens, label = draw(st.lists(st.integers(-100, 2**31 - 1), max_size=5)), draw(st.integers(0, 1000))
        kinds = draw(st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids)).map(tuple))
        examples.append(TextExample(ids, tuple(tokens) if language else label, kinds if segments else None))
    return examples


@given(rows(), st.integers(0, 8))
def test_store_gives_back_its_examples(examples: list[TextExample], split: int) -> None:
    store = TokenStore()
    numbers = [*store.add(examples[:split]), *store.add(examples[split:])]
    assert [store[n] for n in numbers] == examples
    assert [store.cost(n) for n in numbers] == [e.cost for e in examples]
    share = Stored(store, reversed(numbers))
    assert list(share) == examples[::-1]
    assert list(share[1:3]) == examples[::-1][1:3]
    assert share.costliest == max((e.cost for e in examples), default=0)


def test_missing_example_raises() -> None:
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


def test_members_may_have_their_own_ranks() -> None:
    store = TokenStore()
    numbers = store.add([TextExample((i,), i) for i in range(3)])
    members = Members(store)
    members.add("ann", numbers[:2], [])
    members.add("bob", numbers[2:], [])
    population = Population(members, (), {"clients": {"ann": {"train": 2}, "bob": {"train": 1}}})
    ranked = population.with_ranks({"bob": 4, "ann": 2, "left out": 8})
    assert list(ranked.clients) == [Client("ann", 2, 2), Client("bob", 1, 4)]
    assert list(population.clients) == [Client("ann", 2), Client("bob", 1)]
    assert ranked.report["clients"] == {"ann": {"train": 2, "rank": 2}, "bob": {"train": 1, "rank": 4}}


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


class Halves:
    """Keeps rows of even number."""

    def encode(self, rows: Sequence[dict[str, int]]) -> list[TextExample]:
        return [TextExample((row["n"],), 0) for row in rows if row["n"] % 2 == 0]

    def row_sizes(self, examples: Sequence[TextExample]) -> list[int]:
        return [1] * len(examples)


class Windows(Halves):
    """Gives a row ``n`` examples, and leaves out those of none."""

    def encode(self, rows: Sequence[dict[str, int]]) -> list[TextExample]:
        return [TextExample((row["n"],), 0) for row in rows for _ in range(row["n"])]

    def row_sizes(self, examples: Sequence[TextExample]) -> list[int]:
        return [len(list(same)) for _, same in groupby(examples, lambda e: e.ids[0])]


def test_every_client_has_a_split_of_its_own() -> None:
    """One stream for all would take the same places of every client's rows for validation."""

    def validation(name: str, seed: int = 0) -> list[int]:
        generator = Round(0, 1, seed, 0).generator("split", name)
        train, validation = _split([range(n, n + 1) for n in range(100, 150)], 0.2, generator)
        assert sorted(train + validation) == list(range(100, 150))
        return validation

    splits = [validation("ann"), validation("bob"), validation("ann", seed=1)]
    assert [len(split) for split in splits] == [10] * 3
    assert len(set(map(tuple, splits))) == 3
    assert validation("ann") == splits[0]


def test_rows_left_out_leave_nothing_in_the_store() -> None:
    store, expected = TokenStore(), TokenStore()
    clients = {"ann": [{"n": n} for n in range(5)], "bob": [{"n": n} for n in range(5, 9)]}
    numbers = dict(_encoded(store, Halves(), clients))  # type: ignore[arg-type]
    expected.add(TextExample((n,), 0) for n in (0, 2, 4, 6, 8))
    single = [range(n, n + 1) for n in range(5)]
    assert numbers == {"ann": single[:3], "bob": single[3:]}
    assert store.sha256() == expected.sha256()


def test_examples_of_a_row_belong_to_its_client() -> None:
    """Also where a row that is left out and one with two examples make the numbers of both equal."""
    clients = {"ann": [{"n": 2}, {"n": 0}], "bob": [{"n": 1}, {"n": 3}]}
    numbers = dict(_encoded(TokenStore(), Windows(), clients))  # type: ignore[arg-type]
    assert numbers == {"ann": [range(2)], "bob": [range(2, 3), range(3, 6)]}


def test_examples_of_a_row_are_not_divided() -> None:
    by_row = [range(3 * n, 3 * n + 3) for n in range(10)]
    train, validation = _split(by_row, 0.5, Round(0, 1, 0, 0).generator("split", "ann"))
    assert len(train) == len(validation) == 15
    assert sorted(train + validation) == list(range(30))
    assert not {n // 3 for n in train} & {n // 3 for n in validation}


@pytest.mark.parametrize(
    ("rows", "fraction", "held_back"), [(19, 0.1, 2), (5, 0.3, 2), (5, 0.1, 0), (4, 0.99, 3), (1, 0.9, 0), (7, 0.0, 0)]
)
def test_validation_rows_are_rounded_and_leave_one_to_train_on(rows: int, fraction: float, held_back: int) -> None:
    generator = Round(0, 1, 0, 1).generator("split", "ann")
    training, validation = _split([range(i, i + 1) for i in range(rows)], fraction, generator)
    assert len(validation) == held_back
    assert sorted(training + validation) == list(range(rows))


def test_row_decides_by_itself_whether_it_is_held_back() -> None:
    """Whatever stands beside it; rows that are the same, or of one person, share a part."""
    names = [f"person {n % 400}" for n in range(800)]

    def held(names: list[str], client: str = "ann", seed: int = 0) -> list[str]:
        by_row = [range(i, i + 1) for i in range(len(names))]
        train, validation = _split(by_row, 0.25, Round(0, 1, seed, 1).generator("split", client), names)
        assert sorted(train + validation) == list(range(len(names)))
        return [names[i] for i in validation]

    back = held(names)
    assert 0.2 * 800 < len(back) < 0.3 * 800
    assert len(back) == 2 * len(set(back))
    assert set(held(["another", *names[::2]])) - {"another"} == set(back) & set(names[::2])
    assert held(names, "bob") != back != held(names, seed=1)


@pytest.mark.parametrize("most", [1, 2, 3, 4, 100])
def test_clients_are_encoded_some_at_a_time(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as a call takes, and one with more rows than that alone."""
    monkeypatch.setattr(data_population, "_ROWS_A_CALL", most)
    calls: list[int] = []

    class Noting(Windows):
        def encode(self, rows: Sequence[dict[str, int]]) -> list[TextExample]:
            calls.append(len(rows))
            return super().encode(rows)

    clients = {"ann": [{"n": 1}, {"n": 2}, {"n": 3}], "bob": [{"n": 1}], "cid": [{"n": 2}, {"n": 1}]}
    numbers = dict(_encoded(TokenStore(), Noting(), clients))  # type: ignore[arg-type]
    assert numbers == {
        "ann": [range(1), range(1, 3), range(3, 6)],
        "bob": [range(6, 7)],
        "cid": [range(7, 9), range(9, 10)],
    }
    assert calls == {1: [3, 1, 2], 2: [3, 1, 2], 3: [3, 3], 4: [4, 2], 100: [6]}[most]
