"""The law of the noise, and which sums share it."""

from __future__ import annotations

import math

import pytest
import torch

from rondo.privacy.mechanism.noise import noised

KEY = bytes(range(32))


def noise(count: int, attempt: int = 0, key: bytes = KEY) -> torch.Tensor:
    return noised(torch.zeros(count, dtype=torch.float64), 1.0, key, attempt)


def test_noise_is_gaussian() -> None:
    """Standard deviation within 0.5 %, and Kolmogorov and Smirnov's distance below its value at p = 1e-3."""
    drawn = 3.0 * noise(1_000_000)
    assert abs(float(drawn.std()) - 3.0) < 0.015
    below = torch.special.ndtr(drawn.sort().values / 3.0)
    steps = torch.arange(1_000_001, dtype=torch.float64) / 1_000_000
    distance = max(float((steps[1:] - below).max()), float((below - steps[:-1]).max()))
    assert distance < 1.95 / math.sqrt(1_000_000)


def test_numbers_of_one_sum_are_independent() -> None:
    """Neighbours, numbers further apart, and their squares: Box and Muller's transform makes pairs, of which one is
    taken."""
    drawn = noise(200_000)
    for numbers in (drawn, drawn.square() - 1):
        unit = numbers / numbers.norm()
        lags = torch.stack([(unit[lag:] * unit[:-lag]).sum() for lag in (1, 2, 3, 8, 1_000, 100_000)])
        assert float(lags.abs().max()) < 5 / math.sqrt(200_000)


def test_noise_is_scaled() -> None:
    drawn = noised(torch.zeros(1_000_000, dtype=torch.float64), 2.5, KEY, 0)
    assert abs(float(drawn.std()) - 2.5) < 0.0125


def test_same_sum_of_an_attempt_has_the_same_noise() -> None:
    assert torch.equal(noise(100, 7), noise(100, 7))


def test_attempts_keys_sums_and_deviations_have_noise_of_their_own() -> None:
    other_sum = torch.zeros(100_000, dtype=torch.float64)
    other_sum[0] = 1e-300
    drawn = torch.stack(
        [
            noise(100_000),
            noise(100_000, 1),
            noise(100_000, key=bytes(32)),
            noised(other_sum, 1.0, KEY, 0),
            noised(torch.zeros_like(other_sum), 2.5, KEY, 0),
        ]
    )
    between = torch.corrcoef(drawn) - torch.eye(5, dtype=torch.float64)
    assert float(between.abs().max()) < 5 / math.sqrt(100_000)


def test_key_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        noised(torch.zeros(1, dtype=torch.float64), 1.0, b"short", 0)
