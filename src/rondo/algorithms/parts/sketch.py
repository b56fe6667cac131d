"""Sketches of the clients' products M = B A (out, in), from whose mean the server rebuilds the mean of the products.

For each module a client sends two products with random matrices W and P, computed on the factors::

    range    M W = B (A W)      (out, s)          W (in, s)
    corange  P M = (P B) A      (2 s + 1, in)     P (2 s + 1, out), or (out, out) if out is less

Both are linear in M, so their means are the sketches of the mean product, whatever the ranks of the clients. With Q an
orthonormal basis of the range's columns, the server takes ``Q (P Q)^+ (P M)`` for the mean. It is exact if s is at
least the rank of the mean. Else its expected squared error is at most 2 (1 + k / (s - k - 1)) times that of the best
approximation of rank k, for each k below s - 1.

W and P follow from the run's seed and the round's index. Server and clients draw them, so they do not travel.

:data:`PROBES` more columns of W take no part in this. What they show of the mean, beside what they show of the rebuilt
one, tells the error.

Source: Tropp, Yurtsever, Udell and Cevher, Practical Sketching Algorithms for Low-Rank Matrix Approximation, 2017:
algorithm 4, and theorem 4.3 for 2 s + 1 rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rondo.algorithm import Round
from rondo.algorithms.formulas import PROBES, sketch_size
from rondo.lowrank import LowRank
from rondo.params import Params, adapted_modules, module_of, normal, pick, sketch

ERROR = "sketch_error"
"""The name of the measure: the norm of what the sketches lose, over that of the mean products."""


@dataclass(frozen=True)
class Rebuilt:
    """A module's mean product, from its sketches."""

    path: str
    matrix: LowRank
    """Without what the server knew of it, in float64."""
    lost: float
    """The estimate of the squared norm of what the sketches lose. It is unbiased over the draws."""
    total: float
    """The same of the squared norm of the mean product."""


def check_sketch(columns: int) -> None:
    """Raises ValueError for a number of columns below 0."""
    if columns < 0:
        raise ValueError(f"sketch is a number of columns, or 0 for single uploads; got {columns}")


def sketches(params: Params, columns: int, round: Round) -> dict[str, Tensor]:
    """``<module>.range`` (out, s + 8) and ``<module>.corange`` (2 s + 1, in) of B A of every module of ``params``. A
    client axis may lead.

    ``columns``: s. A layer with a shorter side has that many (:func:`rondo.algorithms.formulas.sketch_size`).
    """
    result: dict[str, Tensor] = {}
    for path in adapted_modules(params):
        a, b = params[f"{path}.A"], params[f"{path}.B"]
        right, left = _draws(path, (b.shape[-2], a.shape[-1]), columns, round, like=a)
        result |= {f"{path}.range": b @ (a @ right), f"{path}.corange": (left @ b) @ a}
    return result


def rebuilt(
    mean: Params, columns: int, round: Round, known: Mapping[str, LowRank] | None = None
) -> tuple[Rebuilt, ...]:
    """The mean products of all modules whose sketches are in ``mean``, in float64.

    ``known``: parts of the mean products by module. They are taken off the sketches first, so that the sketches need
    only be as wide as the rest's rank.
    """
    paths = dict.fromkeys(map(module_of, pick(mean, sketch)))
    return tuple(_rebuilt(path, mean, columns, round, (known or {}).get(path)) for path in paths)


def relative_error(modules: Iterable[Rebuilt]) -> dict[str, float]:
    """The measure of a round: the error of all modules together, in the root of the mean square. 0 where the products
    are zero. Noise or rounding of the sketches counts as error."""
    parts = list(modules)
    lost, total = (math.fsum(getattr(part, name) for part in parts) for name in ("lost", "total"))
    return {ERROR: math.sqrt(lost / total) if total > 0 else 0.0}


def _rebuilt(path: str, mean: Params, columns: int, round: Round, known: LowRank | None) -> Rebuilt:
    range_, corange = mean[f"{path}.range"].double(), mean[f"{path}.corange"].double()
    shape = range_.shape[0], corange.shape[1]
    right, left = _draws(path, shape, columns, round, like=range_)
    size, _ = sketch_size(columns, *reversed(shape))
    # A draw has the variance 1 / s, so the squares of the probes add up to PROBES / s of the matrix's own.
    total = size / PROBES * float(range_[:, size:].square().sum())
    if known is not None:
        range_ = range_ - known.up @ (known.down @ right)
        corange = corange - (left @ known.up) @ known.down
    q = torch.linalg.qr(range_[:, :size]).Q
    u, t = torch.linalg.qr(left @ q)
    matrix = LowRank(q, torch.linalg.solve_triangular(t, u.mT @ corange, upper=True))
    missed = range_[:, size:] - matrix.up @ (matrix.down @ right[:, size:])
    return Rebuilt(path, matrix, size / PROBES * float(missed.square().sum()), total)


def _draws(path: str, shape: tuple[int, int], columns: int, round: Round, like: Tensor) -> tuple[Tensor, Tensor]:
    """W (in, s + 8) and P (2 s + 1, out) for a matrix of ``shape`` (out, in). The numbers are those of float32, so a
    client in float32 and a server in float64 have the same ones. Their variances make a sketch as long as the matrix,
    in the mean."""
    out, inp = shape
    size, rows = sketch_size(columns, inp, out)
    generator = round.generator("sketch", path)
    right = normal(inp, size + PROBES, generator) / math.sqrt(size)
    left = normal(rows, out, generator) / math.sqrt(rows)
    return right.float().to(like), left.float().to(like)
