"""The weighted mean of uploads has the bits of one operation after the other."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rondo import messages
from rondo.algorithm import Client, Round, UnreadableUpload, Upload, split_rows, weighted_mean

few = settings(max_examples=60)
SEED = st.integers(0, 2**31)
LENGTHS = st.one_of(st.integers(0, 70), st.sampled_from([999, 1000, 1001, 40_000, 100_003]))


def normal(seed: int, length: int) -> Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drawn(seed: int, length: int, count: int) -> tuple[list[Tensor], list[float]]:
    """Vectors and weights with fractions, so that products are rounded."""
    vectors = [normal(seed + k, length).float() * 10.0 ** (k % 5 - 2) for k in range(count)]
    return vectors, [0.3 + 1.7 * k / 3 for k in range(count)]


def by_hand(vectors: list[Tensor], weights: list[float]) -> np.ndarray[Any, Any]:
    total: np.ndarray[Any, Any] = np.zeros(len(vectors[0]))
    for vector, weight in zip(vectors, weights, strict=True):
        total += weight * vector.double().numpy()
    return total / sum(weights)


def mean_of(vectors: list[Tensor], weights: list[float]) -> Tensor:
    uploads = (Upload(Client(str(k), 1), {"x": v}, w) for k, (v, w) in enumerate(zip(vectors, weights, strict=True)))
    return weighted_mean(uploads).params["x"]


@few
@given(SEED, LENGTHS, st.integers(1, 19), st.sampled_from([1000, 2**19]))
def test_mean_has_the_bits_of_sequential_operations(seed: int, length: int, count: int, together: int) -> None:
    vectors, weights = drawn(seed, length, count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "_TOGETHER", together)
        mean = mean_of(vectors, weights)
    assert mean.numpy().tobytes() == by_hand(vectors, weights).tobytes()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_bits_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    vectors, weights = drawn(5, 200_001, 11)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        mean = mean_of(vectors, weights)
    finally:
        torch.set_num_threads(before)
    assert mean.numpy().tobytes() == by_hand(vectors, weights).tobytes()


def test_nonfinite_and_very_small_numbers_are_kept() -> None:
    vector = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e-45, -0.0, 3.4e38])
    mean = mean_of([vector], [2.0])
    torch.testing.assert_close(mean, vector.double(), rtol=0, atol=0, equal_nan=True)
    assert mean[3] != 0


@pytest.mark.parametrize(
    "other",
    [
        lambda v: v.double(),
        lambda v: v.bfloat16(),
        lambda v: v.half(),
        lambda v: torch.stack([v, v], 1)[:, 0],
        lambda v: v[:1].expand(len(v)),
    ],
)
def test_vectors_of_any_type_and_layout(other: Callable[[Tensor], Tensor]) -> None:
    vectors, weights = drawn(3, 1001, 9)
    vectors[4] = other(vectors[4])
    assert mean_of(vectors, weights).numpy().tobytes() == by_hand(vectors, weights).tobytes()


@pytest.mark.parametrize(
    ("count", "share", "first", "second"),
    [
        (4, 0.5, [0, 2], [1, 3]),
        (5, 0.8, [0, 1, 2, 3], [4]),
        (10, 0.8, [0, 1, 2, 3, 5, 6, 7, 8], [4, 9]),
        (3, 0.5, [0], [1, 2]),
        (2, 0.99, [0], [1]),
        (1, 0.5, [0], [0]),
        (0, 0.5, [], []),
    ],
)
def test_rows_are_split_evenly_and_both_parts_have_some(
    count: int, share: float, first: list[int], second: list[int]
) -> None:
    assert split_rows(count, share) == (first, second)


def test_streams_are_those_of_seed_round_and_tags_in_every_version() -> None:
    """BLAKE2b of the three, without the sign's bit: a run that goes on under a later version draws the same."""

    def seed_of(text: str) -> int:
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") % 2**63

    round = Round(3, 9, 7, 5, skipped=2)
    assert round.attempt == 5
    assert round.generator("rows", "ann", 1).initial_seed() == seed_of("7/3/rows/ann/1")
    assert round.attempt_generator("rows").initial_seed() == seed_of("7/5/rows")


def test_unreadable_upload_is_told_in_a_line() -> None:
    error = UnreadableUpload("bad_rank", "it has 5")
    assert (str(error), error.reason, error.detail) == ("bad_rank: it has 5", "bad_rank", "it has 5")


def test_mean_of_no_uploads_is_refused() -> None:
    with pytest.raises(ValueError, match="no uploads to average"):
        weighted_mean(())
