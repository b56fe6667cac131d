"""Random numbers that nobody else can compute: which rows a step draws, and its noise.

The bits come from the operating system. A debug seed replaces them by SHAKE-256 of the seed and a counter, so that a
run can be repeated; whoever knows the seed can subtract the noise, so no epsilon holds then.
"""

from __future__ import annotations

import hashlib
import math
import os

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


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
