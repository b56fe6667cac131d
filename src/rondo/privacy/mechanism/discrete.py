"""Discrete Gaussian noise: integers k with a probability in proportion to exp(-k^2 / 2 s^2), exactly.

A candidate is a discrete Laplace number of scale s: a sign, U + s V with U uniform below s, and V geometric, which is
taken with the probability that makes the law Gaussian (Canonne, Kamath and Steinke 2020, "The Discrete Gaussian for
Differential Privacy", algorithms 2 and 3; their two rejections are one here, with the product of both probabilities).

No rounding is in the law. A probability exp(-g) meets a uniform number by its first 32 bits. Where they and
floating-point arithmetic cannot tell which of the two is larger, more bits and decimal digits decide, as many as it
takes. So the same bits give the same numbers on every machine, too.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Words = Callable[[int], NDArray[np.uint64]]
"""Gives so many uniform words of 64 bits."""
LARGEST = 2**58
"""The largest s: 32 of it are within 63 bits."""
_FIRST = 32
"""Bits of a uniform number that are drawn at once."""
_MARGIN = 2.0**-31
"""Difference above which the first bits and floating-point arithmetic, whose error is below 2^-48, decide."""
_CHUNK = 2**16


def discrete_gaussian(deviation: int, count: int, words: Words) -> NDArray[np.int64]:
    """``count`` independent numbers of the discrete Gaussian law with s = ``deviation``, (count,).

    ``deviation``: from 1 to ``LARGEST``. Raises ValueError for another.
    """
    if not 1 <= deviation <= LARGEST:
        raise ValueError(f"a deviation is from 1 to 2^58, got {deviation}")
    found = np.empty(count, np.int64)
    done = 0
    while done < count:
        # 48 % of the candidates are taken.
        taken = _taken(deviation, min(_CHUNK, 9 * (count - done) // 4 + 8), words)[: count - done]
        found[done : done + len(taken)] = taken
        done += len(taken)
    return found


def _taken(scale: int, candidates: int, words: Words) -> NDArray[np.int64]:
    """The numbers that are left of so many candidates."""
    first, second = words(2 * candidates).reshape(2, candidates)
    place, third = first >> np.uint64(1), second & np.uint64(2**_FIRST - 1)
    whole = _geometric(second >> np.uint64(64 - _FIRST), words)
    negative = (first & np.uint64(1)).astype(bool)
    rest = (place % np.uint64(scale)).astype(np.int64)
    size = whole + rest / scale
    difference = np.exp(whole - 0.5 - size * size / 2) - third * 2.0**-_FIRST
    taken = difference > 0
    for k in np.flatnonzero(np.abs(difference) < _MARGIN):
        taken[k] = _Uniform(int(third[k]), words).below(_exponent(int(whole[k]), int(rest[k]), scale))
    # A whole number of scales fits, so each rest is as likely; and zero has one sign.
    taken &= (place < np.uint64(2**63 // scale * scale)) & ~(negative & (whole == 0) & (rest == 0))
    whole, rest = whole[taken], rest[taken]
    if whole.size and int(whole.max()) >= 32:
        raise OverflowError("a number of 32 deviations, which has a probability below 10^-220")
    found: NDArray[np.int64] = np.where(negative[taken], -1, 1) * (whole * scale + rest)
    return found


def _exponent(whole: int, rest: int, scale: int) -> Fraction:
    """g, where exp(-g) is the probability to take a candidate: y^2 / 2 - V + 1 / 2 of y = V + U / s."""
    return Fraction((whole * scale + rest) ** 2, 2 * scale**2) - whole + Fraction(1, 2)


def _geometric(drawn: NDArray[np.uint64], words: Words) -> NDArray[np.int64]:
    """V of each word, which is k or more with probability exp(-k)."""
    found: NDArray[np.int64] = (-np.log((drawn + 0.5) * 2.0**-_FIRST)).astype(np.int64)
    for k in np.flatnonzero((_TAILS[found] == drawn) | (_TAILS[found + 1] == drawn)):
        uniform, whole = _Uniform(int(drawn[k]), words), 0
        while uniform.below(Fraction(whole + 1)):
            whole += 1
        found[k] = whole
    return found


class _Uniform:
    """A uniform number in [0, 1), whose further bits are drawn where they matter."""

    def __init__(self, first: int, words: Words) -> None:
        self._number, self._bits, self._words = first, _FIRST, words

    def below(self, exponent: Fraction) -> bool:
        """Whether it is below exp(-``exponent``)."""
        while True:
            bound = _scaled(exponent, self._bits)
            if self._number + 2 <= bound:
                return True
            if self._number >= bound + 2:
                return False
            self._number = self._number << 64 | int(self._words(1)[0])
            self._bits += 64


def _scaled(exponent: Fraction, bits: int) -> int:
    """exp(-``exponent``) times 2^``bits``, to an error below 1 before it is rounded down."""
    with localcontext(prec=bits // 3 + 20):
        return int((Decimal(-exponent.numerator) / exponent.denominator).exp() * 2**bits)


_TAILS = np.array([_scaled(Fraction(k), _FIRST) for k in range(24)], np.uint64)
"""exp(-k) times 2^32, rounded down, for k to 23, where it is 0. Only first bits that are one of them leave V open: the
logarithm of others is at least 10^-10 from a whole number."""
