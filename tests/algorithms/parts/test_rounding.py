"""Stochastic rounding: its mean is the tensor, its codes are the bytes promised, and other bytes are refused."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rondo.algorithm import UnreadableUpload
from rondo.algorithms.wrappers.compressed import BLOCK, Bits, rounded, unrounded

BITS = st.sampled_from((4, 8))
NUMBERS = st.floats(-1e6, 1e6, width=32)


def in_mean(values: torch.Tensor, bits: Bits, monkeypatch: pytest.MonkeyPatch, draws: int) -> torch.Tensor:
    """The mean of the rounded ``values`` over a grid of ``draws`` equally spaced draws, the same for all numbers."""
    total = torch.zeros_like(values, dtype=torch.float64)
    for k in range(draws):
        at = (k + 0.5) / draws
        monkeypatch.setattr(torch, "rand", lambda shape, at=at, **_: torch.full(shape, at, dtype=torch.float64))
        total += unrounded("x", *rounded(values, bits, torch.Generator()), len(values), bits)
    return total / draws


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.lists(NUMBERS, min_size=1, max_size=40), BITS)
def test_mean_over_all_draws_is_the_number(numbers: list[float], bits: Bits) -> None:
    """Of a grid of n draws, the mean is within 1/n of a step: as near as a grid can be."""
    values = torch.tensor(numbers, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        mean = in_mean(values, bits, patch, 500)
    step = float(values.abs().max()) / (127 if bits == 8 else 7)
    assert (mean - values).abs().max() <= step / 400


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), BITS)
def test_mean_over_seeds_is_the_number(seed: int, bits: Bits) -> None:
    values = torch.randn(300, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    copies = 400
    generator = torch.Generator().manual_seed(seed + 1)
    total = sum(unrounded("x", *rounded(values, bits, generator), 300, bits) for _ in range(copies))
    step = float(values.abs().max()) / (127 if bits == 8 else 7)
    off = (total / copies - values) / (step / 2 / math.sqrt(copies))  # the largest standard deviation of a mean
    assert off.abs().max() < 6
    assert abs(float(off.mean())) * math.sqrt(300) < 6, "all numbers together"


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=600), BITS)
def test_error_is_below_one_step_and_the_largest_is_kept(numbers: list[float], bits: Bits) -> None:
    values = torch.tensor(numbers, dtype=torch.float64)
    codes, scales = rounded(values, bits, torch.Generator().manual_seed(0))
    assert codes.shape == (math.ceil(len(numbers) * bits / 8),)
    assert scales.shape == (math.ceil(len(numbers) / BLOCK),)
    assert (codes.dtype, scales.dtype) == (torch.uint8, torch.float32)
    back = unrounded("x", codes, scales, len(numbers), bits)
    for block in range(len(scales)):
        part = slice(block * BLOCK, (block + 1) * BLOCK)
        largest = float(values[part].abs().max())
        step = float(scales[block]) / (127 if bits == 8 else 7)
        assert (back[part] - values[part]).abs().max() <= step * (1 + 1e-12)
        assert float(back[part].abs().max()) <= float(scales[block]) * (1 + 1e-12)
        assert largest == 0 or abs(float(back[part].abs().max()) / largest - 1) < 1e-6


@pytest.mark.parametrize("bits", [4, 8])
def test_numbers_beyond_single_precision_keep_their_level(bits: Bits) -> None:
    """A scale that is rounded down would leave the largest number without a level."""
    values = torch.tensor([1 + 2.0**-30, -(1 + 2.0**-30), 2.0**-140], dtype=torch.float64)
    codes, scales = rounded(values, bits, torch.Generator().manual_seed(0))
    assert float(scales) >= float(values.max())
    back = unrounded("x", codes, scales, 3, bits)
    torch.testing.assert_close(back[:2], values[:2], rtol=1e-6, atol=0)


@pytest.mark.parametrize("bits", [4, 8])
def test_zeros_stay_zeros(bits: Bits) -> None:
    codes, scales = rounded(torch.zeros(5), bits, torch.Generator().manual_seed(0))
    assert unrounded("x", codes, scales, 5, bits).eq(0).all()


def test_two_codes_share_a_byte() -> None:
    codes, scales = rounded(torch.tensor([7.0, -7.0, 0.0]), 4, torch.Generator().manual_seed(0))
    assert codes.tolist() == [14 | 0 << 4, 7]
    assert scales.tolist() == [7.0]


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, -1.0])
def test_bad_scale_is_refused(scale: float) -> None:
    codes, _ = rounded(torch.ones(3), 8, torch.Generator())
    with pytest.raises(UnreadableUpload, match=r"bad_scale: w\.A"):
        unrounded("w.A", codes, torch.tensor([scale]), 3, 8)


@pytest.mark.parametrize(("bits", "codes"), [(8, [0, 255]), (4, [15, 0]), (4, [15 << 4, 0]), (4, [0, 1 << 4])])
def test_code_that_no_client_writes_is_refused(bits: Bits, codes: list[int]) -> None:
    """One level too many, and a second code in the last byte of three."""
    count = 2 if bits == 8 else 3
    with pytest.raises(UnreadableUpload, match="bad_code"):
        unrounded("w.A", torch.tensor(codes, dtype=torch.uint8), torch.ones(1), count, bits)
