"""Noise that the sites of a masked sum add themselves, so the server sees no sum without it.

Each site adds a share: discrete Gaussian noise in the units of the sum. The shares of ``threshold - colluding`` sites
make the noise whole, since a sum has as many sites as the threshold at least, and those that collude subtract their
own. A further share only adds to it.

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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rondo.privacy.accounts.accountant import epsilon_of_steps
from rondo.privacy.masking.fixed_point import FixedPoint, Ring
from rondo.privacy.mechanism.clip import clipped
from rondo.privacy.mechanism.discrete import discrete_gaussian
from rondo.privacy.mechanism.secret import SecretStream

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

        Raises ValueError if they are fewer than :data:`~rondo.privacy.masking.fixed_point.LEAST_FRACTION`.
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
