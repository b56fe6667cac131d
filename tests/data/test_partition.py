"""Every way to deal rows: no row twice, dropped rows counted, the same deal from the same seed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outcomes import problems
from rondo.config import ConfigError, PartitionConfig
from rondo.data.partition.deal import NOBODY, Deal, deal, deal_tests, histogram, proportional

COUNT = 120
LABELS = [str(i % 6) for i in range(COUNT)]
IDS = [f"site {i % 5}" for i in range(COUNT)]

KINDS: dict[str, dict[str, Any]] = {
    "iid": {"clients": 7},
    "dirichlet": {"clients": 7, "alpha": 0.5},
    "shards": {"clients": 7, "shards_per_client": 2},
    "classes": {"clients": 7, "classes_per_client": 2},
    "natural": {"column": "site"},
    "lognormal": {"clients": 7, "sigma": 1.5},
}


def dealt(kind: str, seed: int = 0, count: int = COUNT, **options: Any) -> Deal:
    config = PartitionConfig(kind=kind, **(KINDS[kind] | options))  # type: ignore[arg-type]
    return deal(config, LABELS[:count], IDS[:count], count, torch.Generator().manual_seed(seed))


def fault(kind: str, **options: Any) -> dict[str, str]:
    return problems(lambda: dealt(kind, **options))


def sizes(partition: Deal) -> list[int]:
    return [len(rows) for rows in partition.rows.values()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_row_is_dealt_once_or_counted_as_dropped(kind: str, seed: int) -> None:
    partition = dealt(kind, seed)
    rows = [i for part in partition.rows.values() for i in part]
    assert len(rows) == len(set(rows))
    assert set(rows) <= set(range(COUNT))
    assert len(rows) + partition.dropped == COUNT
    assert [part for part in partition.rows.values() if list(part) != sorted(part)] == []
    assert list(partition.rows) == sorted(partition.rows)


@pytest.mark.parametrize("kind", KINDS)
def test_deal_follows_the_seed(kind: str) -> None:
    assert dealt(kind, 3) == dealt(kind, 3)
    if kind != "natural":
        assert dealt(kind, 3) != dealt(kind, 4)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "natural"])
def test_client_count_is_as_configured_and_names_sort(kind: str) -> None:
    assert list(dealt(kind).rows) == [f"client-{i}" for i in range(7)]


def test_padded_names_sort_by_number() -> None:
    assert list(dealt("iid", clients=12).rows) == [f"client-{i:02d}" for i in range(12)]


def test_iid_sizes_differ_by_one_and_rows_are_shuffled() -> None:
    partition = dealt("iid")
    assert sorted(sizes(partition)) == [17] * 6 + [18]
    assert partition.rows["client-0"] != tuple(range(len(partition.rows["client-0"])))
    assert sizes(dealt("iid", clients=COUNT)) == [1] * COUNT
    assert sizes(dealt("iid", clients=1)) == [COUNT]


def test_dirichlet_keeps_min_size_and_skews_by_alpha() -> None:
    """A smaller alpha skews more."""
    assert min(sizes(dealt("dirichlet", clients=5, min_size=8))) >= 8
    assert dealt("dirichlet").dropped == 0

    def skew(alpha: float) -> float:
        """The mean share of a client's commonest label."""
        partition = dealt("dirichlet", clients=4, alpha=alpha, min_size=1)
        return sum(max(histogram([LABELS[i] for i in p]).values()) / len(p) for p in partition.rows.values()) / 4

    assert skew(0.1) > skew(1000.0) + 0.1


def test_dirichlet_with_min_size_zero_allows_empty_clients() -> None:
    partition = dealt("dirichlet", clients=30, alpha=0.01, min_size=0)
    assert len(partition.rows) == 30
    assert 0 in sizes(partition)
    assert sum(sizes(partition)) == COUNT


@pytest.mark.parametrize(("clients", "least"), [(100, 1), (100, 10), (300, 1)])
def test_dirichlet_fills_clients_that_no_draw_reaches(clients: int, least: int) -> None:
    """With two classes and alpha 0.1, as the literature has it, a draw reaches a hundred clients once in 10^14."""
    config = PartitionConfig(kind="dirichlet", clients=clients, alpha=0.1, min_size=least)
    labels = [str(i % 2) for i in range(4000)]
    partition = deal(config, labels, None, 4000, torch.Generator().manual_seed(0))
    assert sorted(i for part in partition.rows.values() for i in part) == list(range(4000))
    counts = sorted(sizes(partition))
    assert counts[0] == least
    assert counts[-1] > 4 * 4000 / clients
    assert 0 < partition.moved <= least * counts.count(least)
    assert partition == deal(config, labels, None, 4000, torch.Generator().manual_seed(0))


def test_dirichlet_with_as_few_rows_as_clients_need_deals_them_evenly() -> None:
    assert sizes(dealt("dirichlet", clients=12, alpha=0.1, min_size=10)) == [10] * 12


def test_dirichlet_moves_no_rows_where_a_draw_suffices() -> None:
    assert dealt("dirichlet").moved == 0


@given(count=st.integers(1, COUNT), clients=st.integers(1, 12), shards=st.integers(1, 5))
@settings(max_examples=25)
def test_shards_drop_fewer_rows_than_there_are_shards(count: int, clients: int, shards: int) -> None:
    if count < clients * shards:
        return
    partition = dealt("shards", count=count, clients=clients, shards_per_client=shards)
    assert partition.dropped == count % (clients * shards)


def test_shards_give_a_client_few_labels() -> None:
    partition = dealt("shards", clients=6, shards_per_client=2)
    assert partition.dropped == 0
    assert sizes(partition) == [20] * 6
    assert [part for part in partition.rows.values() if not len({LABELS[i] for i in part}) <= 4] == []


@pytest.mark.parametrize("classes", [1, 2, 6])
def test_clients_have_the_configured_number_of_classes(classes: int) -> None:
    partition = dealt("classes", classes_per_client=classes)
    assert [len({LABELS[i] for i in part}) for part in partition.rows.values()] == [classes] * 7
    assert (partition.dropped == 0) == ({LABELS[i] for p in partition.rows.values() for i in p} == set(LABELS))


def test_rows_of_an_unassigned_class_are_counted() -> None:
    partition = dealt("classes", clients=2, classes_per_client=1)
    assigned = {LABELS[i] for part in partition.rows.values() for i in part}
    assert partition.dropped == COUNT - 20 * len(assigned) > 0


def owners_of(partition: Deal) -> dict[str, list[str]]:
    """The clients of every class."""
    result: dict[str, list[str]] = {}
    for client, rows in partition.rows.items():
        for label in sorted({LABELS[i] for i in rows}):
            result.setdefault(label, []).append(client)
    return result


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("clients", "classes"), [(3, 2), (6, 1), (7, 2), (9, 4)])
def test_every_class_goes_to_as_many_clients(clients: int, classes: int, seed: int) -> None:
    """RoLoRA's splits of MNIST: 5 clients with two labels each, 10 with one each, and no class with two owners."""
    partition = dealt("classes", seed, clients=clients, classes_per_client=classes)
    counts = [len(owners) for owners in owners_of(partition).values()]
    assert len(counts) == 6
    assert max(counts) - min(counts) <= 1
    assert partition.dropped == 0


def test_sizes_of_clients_with_classes_spread_with_sigma() -> None:
    even = sizes(dealt("classes", clients=6, classes_per_client=2))
    spread = sizes(dealt("classes", clients=6, classes_per_client=2, sigma=2.0))
    assert even == [20] * 6
    assert sum(spread) == COUNT
    assert max(spread) > 2 * min(spread)


@given(
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=8), clients=st.integers(1, 12),
    classes=st.integers(1, 8), seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=50)
def test_equal_sizes_are_equal_and_as_large_as_can_be(counts: list[int], clients: int, classes: int, seed: int) -> None:
    classes = min(classes, len(counts))
    labels = [str(i) for i, count in enumerate(counts) for _ in range(count)]
    config = PartitionConfig(kind="classes", clients=clients, classes_per_client=classes, equal_sizes=True)

    def enough(size: int) -> bool:
        return sum(min(clients, count // size) for count in counts) >= clients * classes

    generator = torch.Generator().manual_seed(seed)
    if len(labels) < clients or not enough(1):
        with pytest.raises(ConfigError):
            deal(config, labels, None, len(labels), generator)
        return
    partition = deal(config, labels, None, len(labels), generator)
    size = sizes(partition)[0] // classes
    assert sizes(partition) == [size * classes] * clients
    assert enough(size)
    assert not enough(size + 1)
    for rows in partition.rows.values():
        assert list(histogram([labels[i] for i in rows]).values()) == [size] * classes
    assert partition.dropped == len(labels) - size * classes * clients


def test_fedreps_split_of_cifar_has_250_pictures_a_shard() -> None:
    labels = [str(i % 10) for i in range(50000)]
    config = PartitionConfig(kind="classes", clients=100, classes_per_client=2, equal_sizes=True)
    partition = deal(config, labels, None, len(labels), torch.Generator().manual_seed(0))
    assert sizes(partition) == [500] * 100
    assert partition.dropped == 0
    pairs = {tuple(histogram([labels[i] for i in rows])) for rows in partition.rows.values()}
    assert len(pairs) > 25  # of 45


@pytest.mark.parametrize("alpha", [1e-3, 0.5, 100.0])
def test_dirichlet_of_equal_sizes_skews_by_alpha(alpha: float) -> None:
    """FedLoRU's split: the sizes are equal, whatever the mix."""
    labels = [str(i % 10) for i in range(5000)]
    config = PartitionConfig(kind="dirichlet", clients=20, alpha=alpha, equal_sizes=True)
    partition = deal(config, labels, None, 5000, torch.Generator().manual_seed(0))
    assert sizes(partition) == [250] * 20
    assert partition.dropped == 0
    shares = [max(histogram([labels[i] for i in rows]).values()) / 250 for rows in partition.rows.values()]
    low, high = {1e-3: (0.9, 1.1), 0.5: (0.3, 0.6), 100.0: (0.1, 0.2)}[alpha]
    assert low < sum(shares) / 20 < high


def test_class_with_fewer_rows_than_clients_is_an_error() -> None:
    labels = ["a"] * 2 + ["b"] * 50
    config = PartitionConfig(kind="classes", clients=5, classes_per_client=2)
    with pytest.raises(ConfigError, match="class 'a' has 2 rows for 5 clients"):
        deal(config, labels, None, 52, torch.Generator())


def test_natural_clients_keep_their_ids_and_all_rows() -> None:
    partition = dealt("natural")
    assert list(partition.rows) == [f"site {i}" for i in range(5)]
    assert {name: part for name, part in partition.rows.items() if {IDS[i] for i in part} != {name}} == {}
    assert partition.dropped == 0


@given(
    count=st.integers(1, COUNT), clients=st.integers(1, 12), sigma=st.floats(0.01, 50), least=st.integers(0, 4),
    seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=25)
def test_lognormal_sizes_sum_to_all_rows(count: int, clients: int, sigma: float, least: int, seed: int) -> None:
    if count < clients * max(1, least):
        return
    partition = dealt("lognormal", seed, count, clients=clients, sigma=sigma, min_size=least)
    assert sum(sizes(partition)) == count
    assert min(sizes(partition)) >= max(1, least)
    assert partition.dropped == 0


def test_remainders_of_sizes_go_to_the_largest() -> None:
    """Of ten rows 1.3, 2.8 and 5.9; of rows beyond one for each, likewise."""
    assert proportional(range(10), [0.13, 0.28, 0.59], least=0) == [1, 3, 6]
    assert proportional(range(13), [0.13, 0.28, 0.59]) == [2, 4, 7]


def test_lognormal_sizes_spread_with_sigma() -> None:
    assert max(sizes(dealt("lognormal", sigma=0.01))) - min(sizes(dealt("lognormal", sigma=0.01))) <= 2
    assert max(sizes(dealt("lognormal", sigma=3.0))) > 2 * COUNT / 7


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards", "classes", "lognormal"])
def test_more_clients_than_rows_is_an_error(kind: str) -> None:
    message = fault(kind, clients=COUNT + 1)["partition.clients"]
    assert f"{COUNT} rows are not enough for {COUNT + 1} clients of at least 1" in message


def test_too_few_rows_for_min_size_is_an_error() -> None:
    message = fault("lognormal", clients=7, min_size=20)["partition.clients"]
    assert "not enough for 7 clients of at least 20" in message


def test_more_classes_per_client_than_classes_are_an_error() -> None:
    assert "lower it to 6" in fault("classes", classes_per_client=7)["partition.classes_per_client"]


@pytest.mark.parametrize("kind", ["dirichlet", "shards", "classes"])
def test_kinds_that_deal_by_label_need_labels(kind: str) -> None:
    config = PartitionConfig(kind=kind, **KINDS[kind])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"partition\.kind: .* deals by label, and this task has none"):
        deal(config, None, None, COUNT, torch.Generator())


def test_natural_clients_need_rows_with_an_owner() -> None:
    with pytest.raises(ConfigError, match=r"partition\.column: the rows do not say whose they are"):
        deal(PartitionConfig(kind="natural"), None, None, COUNT, torch.Generator())


def test_more_shards_than_rows_is_an_error() -> None:
    """The rows suffice for the clients, but not for their shards."""
    assert "partition" in str(fault("shards", clients=10, shards_per_client=20))


@pytest.mark.parametrize(("kind", "missing"), [("dirichlet", "alpha"), ("classes", "classes_per_client")])
def test_missing_value_of_a_kind_is_asked_for(kind: str, missing: str) -> None:
    assert missing in str(fault(kind, **{missing: None}))


@pytest.mark.parametrize("kind", ["iid", "shards", "classes"])
def test_min_size_holds_for_every_kind(kind: str) -> None:
    """Or the deal is refused; no client ever has fewer rows."""
    try:
        partition = dealt(kind, count=100, min_size=14)
    except ConfigError:
        return
    assert min(sizes(partition)) >= 14


def test_histogram_counts_by_name() -> None:
    assert list(histogram(["b", "a", "b"]).items()) == [("a", 1), ("b", 2)]
    assert histogram([]) == {}


@given(
    trained=st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("xyz"), min_size=1), min_size=1),
    labels=st.lists(st.sampled_from("xyzu"), max_size=40),
    seed=st.integers(0, 3),
)
@settings(max_examples=50)
def test_test_rows_go_to_clients_of_their_class_by_their_shares(
    trained: dict[str, list[str]], labels: list[str], seed: int
) -> None:
    def drawn() -> list[str]:
        return deal_tests(trained, labels, torch.Generator().manual_seed(seed))

    owners = drawn()
    assert owners == drawn()
    for name in set(labels):
        having = {client: classes.count(name) for client, classes in trained.items() if name in classes}
        got = Counter(owner for owner, label in zip(owners, labels, strict=True) if label == name)
        assert got.keys() <= (having.keys() or {NOBODY})
        for client, count in having.items():
            assert abs(got[client] - labels.count(name) * count / sum(having.values())) < 1
