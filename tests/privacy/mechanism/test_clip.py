"""The bound on a change."""

from __future__ import annotations

import pytest
import torch

from rondo.privacy.mechanism.clip import clipped


def test_norm_is_at_most_the_bound() -> None:
    draw = torch.Generator().manual_seed(0)
    for trial in range(10_000):
        size = 10.0 ** (trial % 620 - 320)  # from the smallest denormal ones up
        change = size * torch.randn(12, generator=draw, dtype=torch.float64)
        assert float(clipped(change, 0.5).norm()) <= 0.5 * (1 + 1e-6)


def test_direction_is_kept() -> None:
    got = clipped(torch.tensor([3e200, 4e200], dtype=torch.float64), 1.0)
    torch.testing.assert_close(got, torch.tensor([0.6, 0.8], dtype=torch.float64))


@pytest.mark.parametrize("value", [0.0, 5e-324, 0.1])
def test_short_change_is_unchanged(value: float) -> None:
    change = torch.full((4,), value, dtype=torch.float64)
    assert torch.equal(clipped(change, 1.0), change)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_change_that_is_not_finite_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        clipped(torch.tensor([0.0, value], dtype=torch.float64), 1.0)
