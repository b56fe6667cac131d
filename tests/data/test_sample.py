"""A sample of rows: the shares of labels and owners stay, and every row is as likely as any other."""

from __future__ import annotations

from collections import Counter

import torch
from hypothesis import given
from hypothesis import strategies as st

from rondo.data.partition.deal import sample


def drawn(
    count: int | None, labels: list[str] | None, owners: list[str] | None = None, seed: int = 0, total: int = 0
) -> list[int]:
    total = len(labels if labels is not None else owners or []) or total
    return list(sample(count, total, labels, owners, torch.Generator().manual_seed(seed)))


SORTED = ["a"] * 700 + ["b"] * 200 + ["c"] * 100


def test_sorted_rows_keep_the_shares_of_their_labels() -> None:
    chosen = drawn(100, SORTED)
    assert Counter(SORTED[i] for i in chosen) == {"a": 70, "b": 20, "c": 10}
    assert chosen == sorted(set(chosen))


def test_sample_follows_the_seed() -> None:
    assert drawn(100, SORTED, seed=3) == drawn(100, SORTED, seed=3)
    assert drawn(100, SORTED, seed=3) != drawn(100, SORTED, seed=4)


def test_no_limit_takes_every_row() -> None:
    for count in (None, 1000, 1001):
        assert drawn(count, SORTED) == list(range(1000))


def test_rows_without_labels_are_a_plain_sample() -> None:
    chosen = drawn(10, None, total=1000)
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(range(1000))
    assert chosen != list(range(chosen[0], chosen[0] + 10))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")), min_size=1, max_size=60), st.integers(1, 60))
def test_labels_and_their_owners_keep_their_share_to_a_row(rows: list[tuple[str, str]], count: int) -> None:
    if count > len(rows):
        return
    labels, owners = ([row[i] for row in rows] for i in range(2))
    chosen = drawn(count, labels, owners)
    assert len(set(chosen)) == count
    for group in (labels, rows):
        whole, part = Counter(group), Counter(group[i] for i in chosen)
        assert {name: part[name] for name in whole if not abs(part[name] - count * whole[name] / len(rows)) < 1} == {}


def test_every_row_is_equally_likely() -> None:
    """The bound is four standard deviations of about 20."""
    counts = Counter(i for seed in range(2000) for i in drawn(3, list("aaabbbbbbb"), list("xyyxxyyyzz"), seed))
    assert {i: counts[i] for i in range(10) if not abs(counts[i] - 600) < 90} == {}


def test_owners_of_one_size_are_not_favoured_in_every_label() -> None:
    """Equal distances through labels with the same order of owners would take the same tenth of the owners in each."""
    labels = [label for label in "abcdefghij" for _ in range(100)]
    owners = [str(i) for _ in range(10) for i in range(100)]
    assert len({owners[i] for i in drawn(100, labels, owners)}) > 50
