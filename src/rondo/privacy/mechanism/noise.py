"""Random numbers that nobody else can compute: Gaussian noise on a sum, from a run's secret key, and streams of the
operating system's bits, for a step's draws and its noise.

The same sum of the same attempt gets the same noise, so that repeating it after a crash reveals nothing more. Another
sum of that attempt, or the same one at another deviation, gets other noise: with one stream, the difference of two sums
would be bare.

A debug seed replaces the operating system's bits by SHAKE-256 of the seed and a counter, so that a run can be repeated;
whoever knows the seed can subtract the noise, so no epsilon holds then.
"""

from __future__ import annotations

import hashlib
import math
import os

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

KEY_BYTES = 32


def noised(total: Tensor, deviation: float | Tensor, key: bytes, attempt: int) -> Tensor:
    """``total``, (n,) in float64, plus independent Gaussian noise of standard deviation ``deviation``, one for
    all numbers or one each.

    The bits are SHAKE-256 of the key, the attempt and :func:`digest_of` the sum: without the key they cannot be
    told from random ones. Box and Muller's transform makes them Gaussian in float64, up to 8.6 deviations; attacks on
    the rounding of floating-point noise (Mironov 2012) are not defended. Raises ValueError for a key of another length.
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of noise has {KEY_BYTES} bytes, not {len(key)}")
    count = total.numel()
    stream = hashlib.shake_256(key + attempt.to_bytes(8, "little") + digest_of(total, deviation))
    words = np.frombuffer(stream.digest(16 * count), dtype="<u8").reshape(2, count) >> np.uint64(11)
    # 53 bits each; the first is in (0, 1], as the logarithm needs.
    radius = np.sqrt(-2.0 * np.log((words[0].astype(np.float64) + 1.0) * 2.0**-53))
    angle = words[1].astype(np.float64) * (2.0 * np.pi * 2.0**-53)
    return total + deviation * torch.from_numpy(radius * np.cos(angle))


def digest_of(total: Tensor, deviation: float | Tensor) -> bytes:
    """SHA-256 of a sum and of the deviation of its noise."""
    digest = hashlib.sha256()
    for numbers in (total, torch.as_tensor(deviation, dtype=torch.float64)):
        digest.update(numbers.numpy().astype("<f8", copy=False).tobytes())
    return digest.digest()


class SecretStream:
    """A stream of secret random numbers. No number is given out twice.

    ``debug_seed``: None for the operating system's bits.
    ``purpose``: separates the streams of one debug seed, for instance a client and a round.
    """

    def __init__(self, debug_seed: int | None = None, purpose: str = "") -> None:
        self._seed, self._purpose, self._calls = debug_seed, purpose, 0

    def words(self, count: int) -> NDArray[np.uint64]:
        """``count`` uniform words of 64 bits."""
        return np.frombuffer(self._bytes(8 * count), dtype="<u8")

    def uniform(self, count: int) -> Tensor:
        """``count`` numbers in (0, 1) in float64: 52 bits each, at the middle of their cell, so none is 0 or 1."""
        words = self.words(count) >> np.uint64(12)
        return torch.from_numpy((words.astype(np.float64) + 0.5) * 2.0**-52)

    def normal(self, count: int) -> Tensor:
        """``count`` numbers of N(0, 1) in float64, by Box and Muller (1958)."""
        half = (count + 1) // 2
        radius = (-2 * self.uniform(half).log()).sqrt()
        angle = 2 * math.pi * self.uniform(half)
        return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]

    def chosen(self, population: int, probability: float) -> list[int]:
        """Poisson sampling: places 0 .. ``population`` - 1, each drawn by itself with ``probability``. May be empty."""
        return (self.uniform(population) < probability).nonzero().flatten().tolist()

    def _bytes(self, count: int) -> bytes:
        if self._seed is None:
            return os.urandom(count)
        self._calls += 1
        key = repr((self._seed, self._purpose, self._calls)).encode()
        return hashlib.shake_256(key).digest(count)
