"""Changes as integers in a ring of 32 or 64 bits, whose sum depends on no order and takes masks.

A number becomes ``round(number * 2^F)``. F follows from public facts alone (number of clients, norm bound, ring), so
all parties have the same one, and an honest sum never wraps around.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor

from rondo.privacy.mechanism.clip import clipped

Ring = Literal[32, 64]
"""Bits of a number."""
LEAST_FRACTION = 16
"""Fewest fractional bits F. Below, rounding would show in the mean."""


class NotDecodable(ValueError):
    """A sum is not that of bounded changes, as where a party masked for another round."""


@dataclass(frozen=True)
class FixedPoint:
    """The form of a run's numbers.

    ``ring``: bits of a number.
    ``fraction``: bits after the point, F.
    ``clip``: largest Euclidean norm of a change.
    """

    ring: Ring
    fraction: int
    clip: float

    @staticmethod
    def of(ring: Ring, clip: float, most: int, spread: float = 0.0) -> FixedPoint:
        """The largest F with ``(most + spread) * clip * 2^F < 2^(ring - 2)``; one bit of headroom shows a sum out of
        range.

        ``most``: largest number of changes in a sum.
        ``spread``: room for noise, in clips.
        Raises ValueError if F is below ``LEAST_FRACTION``.
        """
        headroom = Fraction(2 ** (ring - 2)) / ((most + Fraction(spread)) * Fraction(clip))
        fraction = -1
        while 2 ** (fraction + 1) < headroom:
            fraction += 1
        if fraction < LEAST_FRACTION:
            raise ValueError(f"{most} changes of norm {clip:g} leave too few fractional bits in {ring}")
        return FixedPoint(ring, fraction, clip)

    def encode(self, change: Tensor, share: float) -> Tensor:
        """``share`` times ``change``, (n,) in float64, as int64, rounded half to even.

        ``share``: the weight over the largest weight, above 0 and at most 1. A change whose norm is above ``clip`` is
        scaled down to it. Raises ValueError for another share, and for a number that is not finite.
        """
        if not 0 < share <= 1:
            raise ValueError(f"a share is above 0 and at most 1, got {share}")
        return (clipped(change, self.clip) * share * 2.0**self.fraction).round().to(torch.int64)

    def decode(self, total: Tensor, shares: float, count: int, noise: float = 0.0) -> Tensor:
        """The sum in float64 of ``count`` changes, each times its share, from that of their integers, (n,) in int64.

        ``shares``: sum of the shares.
        ``noise``: largest norm of the noise in the sum.
        Raises :class:`NotDecodable` where no changes within the bound give such a sum.
        """
        result = total.double() / 2.0**self.fraction
        rounding = count * math.sqrt(len(total)) / 2.0 ** (self.fraction + 1)
        bound, norm = self.clip * shares + rounding + noise, float(result.norm())
        if not norm <= bound * (1 + 1e-9):
            raise NotDecodable(f"not decodable: the sum has a norm of {norm:.3g}, possible are {bound:.3g}")
        return result
