"""Passes over examples that come in blocks: a part of them is whole blocks, and no step is of few examples."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rondo.config import load
from rondo.data.units import Parts, Units
from rondo.engine.client.plain_step import stream_of
from rondo.tasks.language.text import TextExample

SIZES = st.lists(st.integers(3, 6), min_size=1, max_size=6).filter(lambda sizes: max(sizes) > 1)


def passes(sizes: list[int], batch: int, steps: int | None, epochs: int = 1, **train: Any) -> list[list[int]]:
    """The numbers of the examples in each batch, from blocks of ``sizes``."""
    blocks = [number for number, size in enumerate(sizes) for _ in range(size)]
    examples = Units([TextExample((place,) * (1 + place % 3), 0, None) for place in range(len(blocks))], blocks)
    config = load({"train": {"batch_size": batch, **train}}).train
    stream = stream_of(examples, torch.Generator().manual_seed(0), config, steps, epochs)
    return [[example.ids[0] for example in rows] for rows in stream]


@given(sizes=SIZES, batch=st.integers(1, 9), steps=st.integers(1, 40), grouped=st.booleans())
def test_rows_of_a_block_are_seen_equally_often(sizes: list[int], batch: int, steps: int, grouped: bool) -> None:
    taken = passes(sizes, batch, steps, length_grouping=grouped)
    times = Counter(row for rows in taken for row in rows)
    numbers = iter(range(sum(sizes)))
    for size in sizes:
        assert len({times[next(numbers)] for _ in range(size)}) == 1
    assert sum(times.values()) >= min(steps, len(taken)) * min(batch, 3)


@given(sizes=SIZES, batch=st.integers(1, 9), epochs=st.integers(1, 3), grouped=st.booleans())
def test_smaller_steps_are_of_a_block_at_least(sizes: list[int], batch: int, epochs: int, grouped: bool) -> None:
    """A row that is alone in the last step has the weight of a whole batch."""
    taken = passes(sizes, batch, None, epochs, length_grouping=grouped)
    assert [len(rows) for rows in taken if len(rows) < min(batch, min(sizes))] == []
    assert [len(rows) for rows in taken if len(rows) != batch and len(rows) < min(sizes)] == []
    assert set(Counter(row for rows in taken for row in rows).values()) == {epochs}


@pytest.mark.parametrize(("steps", "rows"), [(8, 8), (9, 16), (16, 16), (17, 24), (40, 40), (41, 48), (81, 88)])
def test_step_more_is_a_block_more(steps: int, rows: int) -> None:
    """Eight steps of a row and nine: the ninth row was the difference of two uploads."""
    assert sum(map(len, passes([8] * 5, 1, steps))) == rows


def test_batches_of_single_rows_are_as_ever() -> None:
    blocks = passes([1] * 10, 4, 3, length_grouping=False)
    order = torch.randperm(10, generator=torch.Generator().manual_seed(0)).tolist()
    assert blocks == [order[:4], order[4:8], order[8:]]


def test_parts_have_all_windows_of_their_rows() -> None:
    by_row = [range(2), range(2, 5), range(5, 6), range(6, 8)]
    train, validation, block = Parts([[3, 0], [2]], [1]).numbers(by_row)
    assert (train, validation, block) == ([0, 1, 5, 6, 7], [2, 3, 4], [0, 0, 1, 0, 0])
