"""Every way of dealing rows: no row twice, none lost uncounted, the same again from the same seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rondo.config import ConfigError, PartitionConfig
from rondo.data.partition import Deal, deal, histogram

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
    with pytest.raises(ConfigError) as caught:
        dealt(kind, **options)
    return {p.path: p.message for p in caught.value.problems}


def sizes(found: Deal) -> list[int]:
    return [len(rows) for rows in found.rows.values()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_row_goes_to_one_client_or_is_counted_as_dropped(kind: str, seed: int) -> None:
    found = dealt(kind, seed)
    rows = [i for part in found.rows.values() for i in part]
    assert len(rows) == len(set(rows))
    assert set(rows) <= set(range(COUNT))
    assert len(rows) + found.dropped == COUNT
    assert all(list(part) == sorted(part) for part in found.rows.values())
    assert list(found.rows) == sorted(found.rows)


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_decides(kind: str) -> None:
    assert dealt(kind, 3) == dealt(kind, 3)
    if kind != "natural":
        assert dealt(kind, 3) != dealt(kind, 4)


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "natural"])
def test_there_are_as_many_clients_as_asked_for_and_their_names_sort(kind: str) -> None:
    assert list(dealt(kind).rows) == [f"client-{i}" for i in range(7)]


def test_names_are_padded_so_that_they_sort_by_number() -> None:
    assert list(dealt("iid", clients=12).rows) == [f"client-{i:02d}" for i in range(12)]


def test_iid_sizes_differ_by_one_at_most_and_rows_are_shuffled() -> None:
    found = dealt("iid")
    assert sorted(sizes(found)) == [17] * 6 + [18]
    assert found.rows["client-0"] != tuple(range(len(found.rows["client-0"])))
    assert sizes(dealt("iid", clients=COUNT)) == [1] * COUNT
    assert sizes(dealt("iid", clients=1)) == [COUNT]


def test_dirichlet_keeps_its_least_size_and_skews_more_with_a_smaller_alpha() -> None:
    assert min(sizes(dealt("dirichlet", clients=5, min_size=8))) >= 8
    assert dealt("dirichlet").dropped == 0

    def skew(alpha: float) -> float:
        """The mean share of a client's commonest label."""
        found = dealt("dirichlet", clients=4, alpha=alpha, min_size=1)
        return sum(max(histogram([LABELS[i] for i in p]).values()) / len(p) for p in found.rows.values()) / 4

    assert skew(0.1) > skew(1000.0) + 0.1


def test_dirichlet_may_leave_a_client_without_rows_where_that_is_allowed() -> None:
    found = dealt("dirichlet", clients=30, alpha=0.01, min_size=0)
    assert len(found.rows) == 30
    assert 0 in sizes(found)
    assert sum(sizes(found)) == COUNT


def test_a_client_of_shards_has_few_labels() -> None:
    found = dealt("shards", clients=6, shards_per_client=2)
    assert found.dropped == 0
    assert sizes(found) == [20] * 6
    assert all(len({LABELS[i] for i in part}) <= 4 for part in found.rows.values())


@pytest.mark.parametrize("classes", [1, 2, 6])
def test_a_client_has_as_many_classes_as_asked_for(classes: int) -> None:
    found = dealt("classes", classes_per_client=classes)
    assert [len({LABELS[i] for i in part}) for part in found.rows.values()] == [classes] * 7
    assert (found.dropped == 0) == ({LABELS[i] for p in found.rows.values() for i in p} == set(LABELS))


def test_rows_of_a_class_that_no_client_has_are_counted() -> None:
    found = dealt("classes", clients=2, classes_per_client=1)
    given_out = {LABELS[i] for part in found.rows.values() for i in part}
    assert found.dropped == COUNT - 20 * len(given_out) > 0


def test_natural_clients_keep_their_ids_and_all_their_rows() -> None:
    found = dealt("natural")
    assert list(found.rows) == [f"site {i}" for i in range(5)]
    assert all({IDS[i] for i in part} == {name} for name, part in found.rows.items())
    assert found.dropped == 0


@given(
    count=st.integers(1, COUNT), clients=st.integers(1, 12), sigma=st.floats(0.01, 50), least=st.integers(0, 4),
    seed=st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=25)
def test_lognormal_sizes_sum_to_all_rows(count: int, clients: int, sigma: float, least: int, seed: int) -> None:
    if count < clients * max(1, least):
        return
    found = dealt("lognormal", seed, count, clients=clients, sigma=sigma, min_size=least)
    assert sum(sizes(found)) == count
    assert min(sizes(found)) >= max(1, least)
    assert found.dropped == 0


def test_lognormal_sizes_spread_with_sigma() -> None:
    assert max(sizes(dealt("lognormal", sigma=0.01))) - min(sizes(dealt("lognormal", sigma=0.01))) <= 2
    assert max(sizes(dealt("lognormal", sigma=3.0))) > 2 * COUNT / 7


# --- what cannot be dealt ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards", "classes", "lognormal"])
def test_more_clients_than_rows_is_an_error(kind: str) -> None:
    message = fault(kind, clients=COUNT + 1)["partition.clients"]
    assert f"{COUNT} rows are not enough for {COUNT + 1} clients of at least 1" in message


def test_fewer_rows_than_the_least_sizes_need_is_an_error() -> None:
    message = fault("lognormal", clients=7, min_size=20)["partition.clients"]
    assert "not enough for 7 clients of at least 20" in message


def test_what_the_labels_do_not_allow_is_an_error() -> None:
    assert "lower it to 6" in fault("classes", classes_per_client=7)["partition.classes_per_client"]
    assert "'dirichlet' is not possible here" in fault("dirichlet", clients=30, alpha=0.001)["partition"]


@pytest.mark.parametrize("kind", ["dirichlet", "shards", "classes"])
def test_kinds_that_deal_by_label_need_labels(kind: str) -> None:
    config = PartitionConfig(kind=kind, **KINDS[kind])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"partition\.kind: .* deals by label, and this task has none"):
        deal(config, None, None, COUNT, torch.Generator())


def test_natural_needs_to_know_whose_the_rows_are() -> None:
    with pytest.raises(ConfigError, match=r"partition\.column: the rows do not say whose they are"):
        deal(PartitionConfig(kind="natural"), None, None, COUNT, torch.Generator())


def test_more_shards_than_rows_is_an_error() -> None:
    """There are enough rows for the clients, not for their shards."""
    assert "partition" in str(fault("shards", clients=10, shards_per_client=20))


@pytest.mark.parametrize(("kind", "missing"), [("dirichlet", "alpha"), ("classes", "classes_per_client")])
def test_a_value_that_the_kind_needs_is_asked_for(kind: str, missing: str) -> None:
    assert missing in str(fault(kind, **{missing: None}))


@pytest.mark.parametrize("kind", ["iid", "shards", "classes"])
def test_the_least_size_holds_for_every_kind(kind: str) -> None:
    """Or it is refused; a client below it is never dealt."""
    try:
        found = dealt(kind, count=100, min_size=14)
    except ConfigError:
        return
    assert min(sizes(found)) >= 14


def test_histogram_counts_by_name() -> None:
    assert list(histogram(["b", "a", "b"]).items()) == [("a", 1), ("b", 2)]
    assert histogram([]) == {}
