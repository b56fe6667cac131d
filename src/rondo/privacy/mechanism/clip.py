"""One bound on the norm of what a client adds to the sum: a number, or one that follows the median norm of the changes.

Each client says by a bit whether its change is within the clip. The sum of the bits has noise of its own, which is part
of the run's noise multiplier z: a sum with z1 = (z^-2 - (2 s)^-2)^-1/2, and bits of -1/2 and 1/2 with noise of
deviation s, tell together what one Gaussian sum with z tells (theorem 1 of the source).

Source: Andrew et al. 2021 ("Differentially Private Learning with Adaptive Clipping"), algorithm 1, quantile 0.5.
Deviation: s is 2.5 z where that is more than a twentieth of the expected clients, so that it costs a fiftieth of z at
most with few clients too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


def clipped(change: Tensor, bound: float) -> Tensor:
    """``change``, (n,) in float64, scaled down to a Euclidean norm of at most ``bound``; a shorter one is unchanged.

    The norm is over the whole vector: one bound per tensor would let k tensors add sqrt(k) times as much. Raises
    ValueError if a number is not finite, because no scaling bounds it.
    """
    largest = float(change.abs().max()) if change.numel() else 0.0
    if not math.isfinite(largest):
        raise ValueError("a change has a number that is not finite")
    if largest == 0.0:
        return change
    # Divided by its largest number, no square overflows, and none that matters underflows.
    unit = change / largest
    length = float(unit.norm())
    if largest * length <= bound:
        return change
    return unit * (bound / length)


START = 0.1
"""The clip of the first round, as in the source."""
_QUANTILE, _RATE = 0.5, 0.2


@dataclass(frozen=True)
class AdaptiveClip:
    """The noise and the steps of a clip.

    ``noise``: z, the noise multiplier of a round, above 0 or 0 for no noise at all.
    ``expected``: expected clients of a round.
    """

    noise: float
    expected: int

    @property
    def of_bits(self) -> float:
        """Deviation of the noise on the sum of bits of -1/2 and 1/2."""
        return max(self.expected / 20, 2.5 * self.noise) if self.noise else 0.0

    @property
    def of_sum(self) -> float:
        """Noise multiplier of the sum of changes."""
        return (self.noise**-2 - (2 * self.of_bits) ** -2) ** -0.5 if self.noise else 0.0

    def after(self, clip: float, bits: float) -> float:
        """The clip of the next round. ``bits``: the sum of bits of -1/2 and 1/2, with noise."""
        within = bits / self.expected + 0.5
        return clip * math.exp(-_RATE * (within - _QUANTILE))
