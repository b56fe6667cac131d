"""Changes as integers in a ring of 32 or 64 bits, whose sum depends on no order and takes masks, and the noise of
sites in the same units.

A number becomes ``round(number * 2^F)``. F follows from public facts alone (number of clients, norm bound, ring), so
all parties have the same one, and an honest sum never wraps around.

Each site adds a share of the noise, so the server sees no sum without it: discrete Gaussian noise. The shares of
``threshold - colluding`` sites make the noise whole, since a sum has as many sites as the threshold at least, and those
that collude subtract their own. A further share only adds to it.

Epsilon is that of the Gaussian mechanism with the noise multiplier z. Shares of variance s^2 each, w^2 + 4 m in all of
m, are as likely as what comes of Gaussian noise of variance w^2 = (z clip)^2 that is rounded at random to whole
numbers, but for a factor within exp(+-CLOSENESS) per number, and rounding cannot tell more. Two facts make the factor,
both from Poisson's summation formula: the sum of discrete Gaussians is nearly one (Kairouz, Liu and Steinke 2021, "The
Distributed Discrete Gaussian Mechanism"), and one of variance w^2 + 4 is nearly a Gaussian of variance w^2 rounded by a
discrete Gaussian of variance 4 (Peikert 2010). The derivation is in docs/dev/adr/0028.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rondo.privacy.accounts.accountant import epsilon_of_steps
from rondo.privacy.mechanism.clip import clipped
from rondo.privacy.mechanism.discrete import discrete_gaussian
from rondo.privacy.mechanism.noise import SecretStream

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


CLOSENESS = 1e-33
"""Largest logarithm of the ratio of two probabilities of a number: of the shares' sum, and of rounded Gaussian noise.
For up to 2^20 shares."""
NUMBERS = 2**40
"""Numbers of a sum for which epsilon is computed, more than any has."""
_SMOOTHING = 4
"""The part of a share's variance, in units, that pays for the rounding of the Gaussian noise."""
_TAIL = 16
"""Deviations of noise for which a number in the sum has room: one in 10^56 is larger."""


@dataclass(frozen=True)
class NoiseShare:
    """The noise of one site in a sum, and the bound on what one client adds to it.

    ``points``: the form of the sum's numbers, whose ``clip`` bounds the integers of one client.
    ``noise``: z, above 0.
    ``colluding``: sites that may subtract their noise from the sum.
    """

    points: FixedPoint
    noise: float
    colluding: int

    @staticmethod
    def of(ring: Ring, clip: float, most: int, noise: float, colluding: int) -> NoiseShare:
        """The form with the most fractional bits in which ``most`` clients and the noise have room.

        Raises ValueError if they are fewer than :data:`LEAST_FRACTION`.
        """
        # A sum of n sites has n shares of (z clip)^2 / (t - colluding) each, and n is at most 3 t / 2.
        spread = _TAIL * noise * math.sqrt(1.5 * (colluding + 1))
        return NoiseShare(FixedPoint.of(ring, clip, most, spread), noise, colluding)

    def deviation(self, threshold: int) -> int:
        """Deviation of a share, in units of 2^-F and rounded up. Raises ValueError where no honest site is left of
        ``threshold`` sites."""
        honest = threshold - self.colluding
        if honest < 1:
            raise ValueError(
                f"of {threshold} sites that open a sum, {self.colluding} may collude: nobody's noise counts"
            )
        whole = (Fraction(self.noise) * Fraction(self.points.clip) * 2**self.points.fraction) ** 2
        return math.isqrt(math.ceil(whole / honest + _SMOOTHING) - 1) + 1

    def encode(self, change: Tensor) -> Tensor:
        """``change``, (n,) in float64, as int64. The norm of the integers is at most ``clip``, rounding included.

        Raises ValueError for a number that is not finite.
        """
        points = self.points
        # Rounding moves each number by half a unit at most.
        bound = points.clip * (1 - 1e-12) - math.sqrt(change.numel()) / 2 ** (points.fraction + 1)
        if bound <= 0:
            raise ValueError(f"{change.numel()} numbers are too many for integers of norm {points.clip:g}")
        numbers = (clipped(change, bound) * 2.0**points.fraction).round().to(torch.int64)
        if sum(x * x for x in numbers.tolist()) > (Fraction(points.clip) * 2**points.fraction) ** 2:
            raise ValueError("a change is longer than the clip after rounding")
        return numbers

    def drawn(self, threshold: int, count: int, stream: SecretStream) -> NDArray[np.int64]:
        """The noise of one site, (count,), in units of 2^-F. Raises as :meth:`deviation` does."""
        return discrete_gaussian(self.deviation(threshold), count, stream.words)

    def reach(self, threshold: int, sites: int, count: int) -> float:
        """Largest norm of the noise of ``sites`` sites in a sum of ``count`` numbers, but for once in 10^50 sums."""
        unit = 2.0**-self.points.fraction
        return self.deviation(threshold) * unit * math.sqrt(sites) * (math.sqrt(count) + _TAIL)


def stream_of(debug_seed: int | None, attempt: int, client: str) -> SecretStream:
    """The stream of one site's noise in one sum: the operating system's bits, whatever the arguments, without a debug
    seed. ``client``: the first of the site's clients."""
    return SecretStream(debug_seed, f"share {attempt} {client}")


def epsilon_of_shares(steps: Mapping[tuple[float, float], int], sums: int, delta: float) -> float:
    """Epsilon at ``delta`` of everything in ``steps``, of which ``sums`` sums have noise of their sites. The neighbours
    differ by one client's upload, which is zero in one of them.

    ``steps``: as in :func:`~rondo.privacy.accounts.accountant.epsilon_of_steps`; with noise of sites q is 1, since the
    server knows who took part.
    """
    # Two laws within exp(+-x) of others that satisfy (epsilon, delta) satisfy (epsilon + 2 x, exp(x) delta).
    distance = CLOSENESS * NUMBERS * sums
    return epsilon_of_steps(steps, delta * math.exp(-distance)) + 2 * distance
