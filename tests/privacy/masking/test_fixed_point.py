"""Changes as integers: the largest number of fractional bits, no wrap, and a sum that is the plain one."""

from __future__ import annotations

import random

import pytest
import torch

from rondo.privacy.masking.integers import FixedPoint, NotDecodable, Ring

RINGS: tuple[Ring, ...] = (32, 64)


def changes(count: int, size: int, scale: float, seed: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, size, generator=draw, dtype=torch.float64) * scale


@pytest.mark.parametrize(
    ("ring", "most", "clip", "fraction"), [(32, 10, 1.0, 26), (32, 16, 1.0, 25), (64, 16, 1.0, 57)]
)
def test_fraction_is_the_largest_that_fits(ring: Ring, most: int, clip: float, fraction: int) -> None:
    points = FixedPoint.of(ring, clip, most)
    assert points.fraction == fraction
    assert most * clip * 2**fraction < 2 ** (ring - 2) <= most * clip * 2 ** (fraction + 1)


def test_fewer_than_sixteen_fractional_bits_are_refused() -> None:
    assert FixedPoint.of(32, 1.0, 2**14 - 1).fraction == 16
    with pytest.raises(ValueError, match="16384 changes of norm 1 leave too few fractional bits in 32"):
        FixedPoint.of(32, 1.0, 2**14)
    assert FixedPoint.of(64, 1.0, 2**14).fraction == 47


@pytest.mark.parametrize("ring", RINGS)
def test_sum_is_that_of_bounded_changes_in_any_order(ring: Ring) -> None:
    draw = random.Random(ring)
    for trial in range(40):
        count, size = draw.randint(1, 50), draw.randint(1, 300)
        vectors = changes(count, size, 10 ** draw.uniform(-8, 3), trial)
        shares = [draw.uniform(0.01, 1.0) for _ in range(count)]
        points = FixedPoint.of(ring, 10.0, count)
        encoded = [points.encode(v, s) for v, s in zip(vectors, shares, strict=True)]
        total = torch.stack(encoded).sum(0)
        assert int(total.abs().max()) < 2 ** (ring - 1)
        draw.shuffle(encoded)
        assert torch.stack(encoded).sum(0).equal(total)
        norms = vectors.norm(dim=1, keepdim=True)
        plain = (vectors * (10.0 / norms).clamp(max=1.0) * torch.tensor(shares, dtype=torch.float64).unsqueeze(1)).sum(
            0
        )
        decoded = points.decode(total, sum(shares), count)
        assert float((decoded - plain).abs().max()) <= count * 2.0 ** -(points.fraction + 1) * (1 + 1e-6) + 1e-12


def test_longer_change_is_scaled_to_the_clip() -> None:
    points = FixedPoint.of(64, 2.0, 1)
    decoded = points.decode(points.encode(torch.tensor([30.0, 40.0], dtype=torch.float64), 1.0), 1.0, 1)
    torch.testing.assert_close(decoded, torch.tensor([1.2, 1.6], dtype=torch.float64))


@pytest.mark.parametrize("ring", RINGS)
def test_sum_beyond_the_bound_is_not_decoded(ring: Ring) -> None:
    points = FixedPoint.of(ring, 1.0, 2)
    unit = points.encode(torch.tensor([1.0, 0.0], dtype=torch.float64), 1.0)
    points.decode(2 * unit, 2.0, 2)
    with pytest.raises(NotDecodable, match="not decodable: the sum has a norm of 3, possible are 2"):
        points.decode(3 * unit, 2.0, 2)


@pytest.mark.parametrize("ring", RINGS)
def test_honest_sum_at_its_bound_is_decoded(ring: Ring) -> None:
    """All changes are as long as the clip, and each of their numbers is rounded up, in the coarsest form there is."""
    change = torch.full((10_000,), 65.55 / 2**16, dtype=torch.float64)
    points = FixedPoint(ring, 16, float(change.norm()))
    encoded = points.encode(change, 1.0)
    assert encoded.tolist() == [66] * 10_000
    assert float(points.decode(3 * encoded, 3.0, 3).norm()) > 3 * points.clip * 1.003
    noise = torch.zeros(10_000, dtype=torch.int64)
    noise[0] = 2**16
    assert points.decode(3 * encoded + noise, 3.0, 3, noise=1.0).norm() > 0
    single = FixedPoint(ring, 16, 0.1)  # in binary the norm of three tenths is above three times a tenth
    assert single.decode(torch.tensor([2**16]), 10 * 0.9999999995, 0).tolist() == [1.0]


def test_numbers_without_a_sum_are_refused() -> None:
    points = FixedPoint.of(32, 1.0, 2)
    with pytest.raises(ValueError, match="not finite"):
        points.encode(torch.tensor([torch.nan], dtype=torch.float64), 1.0)
    for share in (0.0, 1.5):
        with pytest.raises(ValueError, match="a share is above 0 and at most 1"):
            points.encode(torch.zeros(1, dtype=torch.float64), share)
