"""The weighted sum of vectors: compiled and by torch, and what the compiled loop refuses."""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rondo import weighted_sum
from rondo.weighted_sum import add_weighted

few = settings(max_examples=60)
SEED = st.integers(0, 2**31)
BUILDABLE = (
    sys.platform == "linux"
    and shutil.which("cc") is not None
    and Path(sysconfig.get_path("include"), "Python.h").exists()
    and not sysconfig.get_config_var("Py_GIL_DISABLED")
)
needs_compiled = pytest.mark.skipif(weighted_sum.compiled is None, reason="installed without a C compiler")

LENGTHS = st.one_of(st.integers(0, 70), st.sampled_from([16383, 16384, 16385, 40_000, 100_003]))


def normal(seed: int, length: int) -> Tensor:
    return torch.randn(length, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def drawn(seed: int, length: int, count: int) -> tuple[Tensor, list[Tensor], list[float]]:
    """A total, vectors and weights that are no whole numbers, so that products are rounded."""
    vectors = [normal(seed + k, length).float() * 10.0 ** (k % 5 - 2) for k in range(count)]
    return normal(seed + count, length), vectors, [0.3 + 1.7 * k / 3 for k in range(count)]


def by_hand(total: Tensor, vectors: list[Tensor], weights: list[float]) -> np.ndarray[Any, Any]:
    result: np.ndarray[Any, Any] = total.double().numpy().copy()
    for vector, weight in zip(vectors, weights, strict=True):
        result += weight * vector.double().numpy()
    return result


@needs_compiled
@few
@given(SEED, LENGTHS, st.integers(0, 19))
def test_the_compiled_loop_has_the_bits_of_one_operation_after_the_other(seed: int, length: int, count: int) -> None:
    total, vectors, weights = drawn(seed, length, count)
    expected = by_hand(total, vectors, weights)
    add_weighted(total, vectors, weights)
    assert total.numpy().tobytes() == expected.tobytes()


@few
@given(SEED, LENGTHS, st.integers(0, 19), st.sampled_from([1000, 2**19]))
def test_torch_has_the_same_bits(seed: int, length: int, count: int, together: int) -> None:
    total, vectors, weights = drawn(seed, length, count)
    expected = by_hand(total, vectors, weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weighted_sum, "compiled", None)
        patch.setattr(weighted_sum, "_TOGETHER", together)
        add_weighted(total, vectors, weights)
    assert total.numpy().tobytes() == expected.tobytes()


@needs_compiled
@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_bits_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    total, vectors, weights = drawn(5, 200_001, 11)
    expected, before = by_hand(total, vectors, weights), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        add_weighted(total, vectors, weights)
    finally:
        torch.set_num_threads(before)
    assert total.numpy().tobytes() == expected.tobytes()


@needs_compiled
def test_numbers_that_are_not_finite_or_very_small_stay_what_they_are() -> None:
    vector = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e-45, -0.0, 3.4e38])
    total = torch.zeros(6, dtype=torch.float64)
    add_weighted(total, [vector], [2.0])
    torch.testing.assert_close(total, 2.0 * vector.double(), rtol=0, atol=0, equal_nan=True)
    assert total[3] != 0


def at_an_odd_address(vector: Tensor) -> Tensor:
    moved = torch.frombuffer(bytearray(4 * len(vector) + 1), dtype=torch.float32, offset=1, count=len(vector))
    assert moved.data_ptr() % 4
    return moved.copy_(vector)


@pytest.mark.parametrize(
    "other",
    [
        lambda v: v.double(),
        lambda v: v.bfloat16(),
        lambda v: v.half(),
        lambda v: torch.stack([v, v], 1)[:, 0],
        lambda v: v[:1].expand(len(v)),
        lambda v: torch.complex(v, v).conj().imag,
        at_an_odd_address,
    ],
)
def test_vectors_of_any_type_and_place(other: Callable[[Tensor], Tensor]) -> None:
    total, vectors, weights = drawn(3, 1001, 9)
    vectors[4] = other(vectors[4])
    expected = by_hand(total, [v.resolve_neg() for v in vectors], weights)
    add_weighted(total, vectors, weights)
    assert total.numpy().tobytes() == expected.tobytes()


def test_a_total_of_any_place() -> None:
    total, vectors, weights = drawn(3, 1001, 9)
    expected = by_hand(total, vectors, weights)
    apart = torch.stack([total, total], 1)[:, 0]
    add_weighted(apart, vectors, weights)
    assert apart.contiguous().numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("loop", [True, False])
@pytest.mark.parametrize("length", [0, 1, 9, 11])
def test_a_vector_of_another_length_is_refused(loop: bool, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if not loop:
        monkeypatch.setattr(weighted_sum, "compiled", None)
    total = torch.zeros(10, dtype=torch.float64)
    with pytest.raises(ValueError, match=re.escape(f"a vector is ({length},), the total (10,)")):
        add_weighted(total, [torch.ones(10), torch.ones(length)], [1.0, 1.0])
    assert not total.any()


@pytest.mark.skipif(not BUILDABLE, reason="there is no C compiler")
def test_where_there_is_a_compiler_the_loop_is_built() -> None:
    """pip is told to go on without it, and says nothing."""
    assert weighted_sum.compiled is not None


def test_a_part_of_a_longer_vector() -> None:
    total, vectors, weights = drawn(3, 1001, 9)
    expected = by_hand(total[7:500], [v[7:500] for v in vectors], weights)
    outside = total[:7].clone(), total[500:].clone()
    add_weighted(total[7:500], [v[7:500] for v in vectors], weights)
    assert total[7:500].numpy().tobytes() == expected.tobytes()
    assert torch.equal(total[:7], outside[0])
    assert torch.equal(total[500:], outside[1])


@needs_compiled
def test_threads_of_a_program_add_at_the_same_time() -> None:
    cases = [drawn(seed, 50_000, 8) for seed in range(4)]
    expected = [by_hand(*case) for case in cases]
    threads = [threading.Thread(target=add_weighted, args=case) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(c[0].numpy().tobytes() == e.tobytes() for c, e in zip(cases, expected, strict=True))


DOUBLE, SINGLE = np.zeros(3), np.zeros(3, dtype=np.float32)
READ_ONLY = np.zeros(3)
READ_ONLY.flags.writeable = False


@needs_compiled
@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((SINGLE, (SINGLE,), (1.0,), 1), ValueError, "expected one axis of type 'd', as long as the total"),
        ((DOUBLE, (DOUBLE,), (1.0,), 1), ValueError, "expected one axis of type 'f', as long as the total"),
        (
            (DOUBLE, (SINGLE, SINGLE[:2]), (1.0, 1.0), 1),
            ValueError,
            "expected one axis of type 'f', as long as the total",
        ),
        ((DOUBLE, (SINGLE[None],), (1.0,), 1), ValueError, "expected one axis of type 'f', as long as the total"),
        ((DOUBLE[:2], (np.zeros(4, dtype=np.float32)[::2],), (1.0,), 1), ValueError, "contiguous"),
        ((DOUBLE, (SINGLE,), (1.0, 2.0), 1), ValueError, "expected one weight a vector"),
        ((DOUBLE, (SINGLE,), ("1",), 1), TypeError, "must be real number, not str"),
        ((DOUBLE, [SINGLE], (1.0,), 1), TypeError, "must be tuple, not list"),
        ((DOUBLE, (SINGLE, "text"), (1.0, 1.0), 1), TypeError, "bytes-like object is required"),
        ((READ_ONLY, (SINGLE,), (1.0,), 1), ValueError, "read-only"),
        ((DOUBLE,), TypeError, "exactly 4 arguments"),
        ((DOUBLE, (SINGLE,), (1.0,), 0), ValueError, "expected at least one thread"),
    ],
)
def test_the_compiled_loop_refuses_what_it_cannot_read(
    arguments: tuple[Any, ...], error: type[Exception], words: str
) -> None:
    compiled: Any = weighted_sum.compiled
    with pytest.raises(error, match=re.escape(words)):
        compiled.add(*arguments)
    assert not DOUBLE.any()
