"""Sizes of uploads and broadcasts, as the table of algorithms states them. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Numbers: TypeAlias = Callable[[int, int, int, int, int], int]
"""Count of numbers sent for one adapted module, from (rank, in, out, round index, uploads per round). A shared head
comes on top."""


def both(r: int, i: int, o: int, t: int, k: int) -> int:
    return r * (i + o)


def up(r: int, i: int, o: int, t: int, k: int) -> int:
    return r * o


def down(r: int, i: int, o: int, t: int, k: int) -> int:
    return r * i


def alternating(r: int, i: int, o: int, t: int, k: int) -> int:
    return r * (o if t % 2 == 0 else i)


def alternating_down(r: int, i: int, o: int, t: int, k: int) -> int:
    """A client that took part in round t - 1 lacks only the factor averaged in it."""
    return r * (o if t % 2 == 1 else i)


def gram(r: int, i: int, o: int, t: int, k: int) -> int:
    return r * min(i, o)


def residual(r: int, i: int, o: int, t: int, k: int) -> int:
    return (r + min((k - 1) * r, i, o)) * (i + o)


def stack(r: int, i: int, o: int, t: int, k: int) -> int:
    return min(k * r, i, o) * (i + o)


def accumulated(r: int, i: int, o: int, t: int, k: int) -> int:
    """The new factors and, after every tenth round (the default tau), the change just added to the base."""
    return (2 if t % 10 == 0 and t > 0 else 1) * r * (i + o)


def sparse(r: int, i: int, o: int, t: int, k: int) -> int:
    """One position in a hundred for five rounds (the default density and sparse_rounds), then both factors."""
    return max(1, int(0.01 * i * o + 0.5)) if t < 5 else r * (i + o)


def whole(r: int, i: int, o: int, t: int, k: int) -> int:
    return i * o
