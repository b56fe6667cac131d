"""Shamir's secret sharing of 32 bytes over a prime field.

Shamir, "How to share a secret", CACM 1979. Any ``threshold`` shares give the secret; fewer are independent of it.
Coefficients come from the operating system.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

PRIME = 2**256 + 297
"""The smallest prime above 2^256, so that every 32 bytes are an element."""
SECRET = 32
"""Bytes of a secret."""
SHARE = 33
"""Bytes of a share."""


def threshold_of(sites: int) -> int:
    """Number of sites whose shares open a sum of ``sites`` sites: two thirds, and more than half. Two sums of one
    attempt would take twice as many answers, and an honest site gives one."""
    return max(sites // 2 + 1, -(-2 * sites // 3))


def split(
    secret: bytes, threshold: int, count: int, draw: Callable[[int], int] = secrets.randbelow
) -> dict[int, bytes]:
    """``count`` shares of ``secret`` by their points 1 to ``count``, of 33 bytes each; ``threshold`` of them open it.

    ``draw`` gives a uniform integer below its argument. Raises ValueError for a secret of another length than 32 bytes,
    and unless 1 <= threshold <= count.
    """
    if len(secret) != SECRET:
        raise ValueError(f"a secret has {SECRET} bytes, not {len(secret)}")
    if not 1 <= threshold <= count:
        raise ValueError(f"threshold {threshold} of {count} shares")
    coefficients = [int.from_bytes(secret), *(draw(PRIME) for _ in range(threshold - 1))]
    shares = {}
    for point in range(1, count + 1):
        value = 0
        for coefficient in reversed(coefficients):
            value = (value * point + coefficient) % PRIME
        shares[point] = value.to_bytes(SHARE)
    return shares


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret of ``shares``, by their points, of which there are at least as many as the threshold.

    Raises ValueError for a share that is no element of the field, a point below 1, and shares that give no 32 bytes.
    Wrong shares that give 32 bytes are not noticed.
    """
    values = {point: int.from_bytes(share) for point, share in shares.items()}
    for point, share in shares.items():
        if point < 1 or len(share) != SHARE or values[point] >= PRIME:
            raise ValueError(f"the share at point {point} is not valid")
    secret = 0
    for point, value in values.items():
        above, below = 1, 1
        for other in values:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        secret = (secret + value * above * pow(below, -1, PRIME)) % PRIME
    if not shares or secret >= 2**256:
        raise ValueError("the shares are not of one secret")
    return secret.to_bytes(SECRET)
