"""One bound on the norm of what a client adds to the sum."""

from __future__ import annotations

import math

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
