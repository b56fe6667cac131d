"""Sizes of uploads and broadcasts, as the table of algorithms states them. Imports no torch.

Parameters after the fifth are fields of the algorithm, with its defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Literal, TypeAlias

Numbers: TypeAlias = Callable[[int, int, int, int, int], int]
"""Count of numbers sent for one adapted module, from (rank, in, out, round index, uploads per round). Whole tensors
come on top."""

Whole: TypeAlias = Literal["all", "body", "head", "none", "twice all"]
"""The whole tensors that travel in a round, in each direction."""

WholeNumbers: TypeAlias = Callable[[int, int, int], int]
"""Count of numbers sent for whole tensors, from the numbers in (body without statistics, statistics, head)."""

WHOLE: Mapping[Whole, WholeNumbers] = {
    "all": lambda body, statistics, head: body + statistics + head,
    "body": lambda body, statistics, head: body + statistics,
    "head": lambda body, statistics, head: head,
    "none": lambda body, statistics, head: 0,
    "twice all": lambda body, statistics, head: 2 * (body + head) + statistics,
}
"""Each :data:`Whole` as a function. Statistics have no second tensor, such as a control variate."""


def both(r: int, i: int, o: int, t: int, k: int) -> int:
    return r * (i + o)


PROBES = 8
"""Columns of a sketch that tell its error (:mod:`rondo.algorithms.parts.sketch`)."""


def sketch_size(columns: int, i: int, o: int) -> tuple[int, int]:
    """The columns s of a module's first sketch, without those that tell its error, and the rows of its second: 2 s + 1,
    for which the source proves its bound. ``columns``: the s that was asked for, which no side of the matrix exceeds.

    >>> from rondo.algorithms.formulas import sketch_size
    >>> sketch_size(16, 384, 384), sketch_size(16, 384, 10)
    ((16, 33), (10, 10))
    """
    size = min(columns, i, o)
    return size, min(2 * size + 1, o)


def _sketched(columns: int, i: int, o: int) -> int:
    size, rows = sketch_size(columns, i, o)
    return (size + PROBES) * o + rows * i


def product(r: int, i: int, o: int, t: int, k: int, sketch: int = 0) -> int:
    """Both factors, or two sketches of their product."""
    return _sketched(sketch, i, o) if sketch else r * (i + o)


def product_beside(r: int, i: int, o: int, t: int, k: int, sketch: int = 0) -> int:
    """Both factors, and two sketches of their product if it is sketched."""
    return r * (i + o) + (_sketched(sketch, i, o) if sketch else 0)


def twice(r: int, i: int, o: int, t: int, k: int) -> int:
    return 2 * r * (i + o)


def corrected(r: int, i: int, o: int, t: int, k: int, option: str = "I") -> int:
    """SCAFFOLD's broadcast. With option I the control variates of A are still zero after the first round, because the
    gradient of A is zero where B is."""
    return twice(r, i, o, t, k) - (r * i if option == "I" and t == 1 else 0)


def none(r: int, i: int, o: int, t: int, k: int) -> int:
    return 0


def up(r: int, i: int, o: int, t: int, k: int) -> int:
    return r * o


def down(r: int, i: int, o: int, t: int, k: int) -> int:
    return r * i


def alternating(r: int, i: int, o: int, t: int, k: int, in_turn: float = math.inf) -> int:
    """``in_turn``: the number of rounds that alternate, RoLoRA's ``alternate_for`` times the rounds of the run."""
    return r * (i if t % 2 == 1 and t < in_turn else o)


def alternating_down(r: int, i: int, o: int, t: int, k: int, in_turn: float = math.inf) -> int:
    """A client that took part in round t - 1 lacks only the factor averaged in it."""
    return alternating(r, i, o, t - 1, k, in_turn)


def gram(r: int, i: int, o: int, t: int, k: int) -> int:
    return r * min(i, o)


def square(r: int, i: int, o: int, t: int, k: int) -> int:
    return r * r


def divisor(r: int, most: int) -> int:
    """The largest number up to ``most`` that divides ``r``."""
    return max(n for n in range(1, most + 1) if r % n == 0)


def squares(r: int, i: int, o: int, t: int, k: int, heads: int = 4) -> int:
    return r * r // divisor(r, heads)


def _chunk(rank: int, i: int, o: int) -> int:
    """A chunk of the base's change as factors, or the sum of all chunks where that is smaller."""
    return min(rank * (i + o), i * o)


def residual(r: int, i: int, o: int, t: int, k: int, sketch: int = 0) -> int:
    return r * (i + o) + _chunk(min(sketch, i, o) if sketch else (k - 1) * r, i, o)


def stack(r: int, i: int, o: int, t: int, k: int) -> int:
    return _chunk(k * r, i, o)


def accumulated(r: int, i: int, o: int, t: int, k: int, tau: int = 10, restart: str = "random") -> int:
    """The new factors and, after every ``tau`` rounds, the change just added to the base. With a random restart in
    every round, B is always zero and sent once."""
    factors = r * i if tau == 1 and restart == "random" else r * (i + o)
    return factors + (_chunk(r, i, o) if t % tau == 0 and t > 0 else 0)


def remainder(r: int, i: int, o: int, t: int, k: int, tau: int = 1) -> int:
    """The factors and, after every ``tau`` rounds, what ``tau`` mean products have beyond them."""
    return r * (i + o) + (0 if t % tau else _chunk(tau * (min(k * r, i, o) - r), i, o))


def turned(r: int, i: int, o: int, t: int, k: int, period: int = 1) -> int:
    """B, and A too after every ``period`` rounds."""
    return r * (i + o if t % period == 0 else o)


def sparse(r: int, i: int, o: int, t: int, k: int, sparse_rounds: int = 5, density: float = 0.01) -> int:
    """A share ``density`` of the positions for ``sparse_rounds`` rounds, then both factors."""
    return max(1, int(density * i * o + 0.5)) if t < sparse_rounds else r * (i + o)


def whole(r: int, i: int, o: int, t: int, k: int) -> int:
    return i * o
