"""The largest numbers of a tensor, and their places."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rondo.algorithm import UnreadableUpload
from rondo.algorithms.wrappers.compressed import largest, spread_out

NUMBERS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=200)


@given(NUMBERS, st.floats(0.001, 0.5))
def test_no_number_left_out_is_larger_than_one_that_is_kept(numbers: list[float], keep: float) -> None:
    values = torch.tensor(numbers, dtype=torch.float64)
    kept, places = largest(values, keep, torch.float32)
    assert len(kept) == len(places) == math.ceil(keep * len(numbers))
    back = spread_out("x", kept, places, len(numbers))
    assert back[places.long()].equal(values[places.long()])
    others = torch.ones(len(numbers), dtype=torch.bool).index_fill(0, places.long(), False)
    assert back[others].eq(0).all()
    if others.any():
        assert values[others].abs().max() <= kept.abs().min()


def test_first_of_equal_numbers_is_kept() -> None:
    kept, places = largest(torch.tensor([1.0, -2.0, 2.0, 2.0, -2.0]), 0.4, torch.float32)
    assert (kept.tolist(), places.tolist()) == ([-2.0, 2.0], [1, 2])


@pytest.mark.parametrize(("count", "dtype"), [(2**15, torch.int16), (2**15 + 1, torch.int32)])
def test_places_take_two_bytes_where_they_fit(count: int, dtype: torch.dtype) -> None:
    values = torch.zeros(count)
    values[-1] = 1.0
    kept, places = largest(values, 1e-6, torch.float32)
    assert places.dtype is dtype
    assert spread_out("x", kept, places, count)[-1] == 1


@pytest.mark.parametrize("places", [[0, 0], [2, 1], [-1, 0], [0, 5]])
def test_bad_places_are_refused(places: list[int]) -> None:
    with pytest.raises(UnreadableUpload, match=r"bad_places: w\.A"):
        spread_out("w.A", torch.ones(2), torch.tensor(places, dtype=torch.int16), 5)
