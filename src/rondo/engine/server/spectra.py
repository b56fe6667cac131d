"""Spectra and angles of matrices of a round, in float64: of changes of weights, and of the spaces of factors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from rondo.lowrank import LowRank

VALUES = 32
"""Most singular values of a matrix that are recorded."""


def singular_values(change: LowRank | Tensor) -> Tensor:
    """The singular values of a change of weights, largest first. A tensor (out, ...) is the matrix (out, all others),
    whose values below 1e-8 of the largest are rounding errors; one without a second axis has none."""
    if isinstance(change, LowRank):
        values: Tensor = torch.linalg.svdvals(core(change))
        return values
    if change.dim() < 2:
        return change.new_zeros(0)
    matrix = change.flatten(1)
    square = matrix @ matrix.mT if len(matrix) <= matrix.shape[1] else matrix.mT @ matrix
    squares: Tensor = torch.linalg.eigvalsh(square).flip(0)
    return squares.clamp_min(0).sqrt()


def stable_rank(values: Tensor) -> float | None:
    """|X|^2 / |X|_2^2 from the singular values of X (FedLoRU, section 3.1): the number of equal singular values that
    would give the same ratio, between 1 and the rank. None for zero."""
    squares = values.square()
    ratio = float(squares.sum() / squares[0]) if len(values) else math.nan
    return ratio if math.isfinite(ratio) else None


def mean_stable_rank(spectra: Sequence[Tensor]) -> float | None:
    """The mean over the matrices that are not zero."""
    ranks = [rank for values in spectra if (rank := stable_rank(values)) is not None]
    return sum(ranks) / len(ranks) if ranks else None


def angle(before: Tensor, after: Tensor) -> float | None:
    """The sine of the largest principal angle between the column spaces of two matrices (n, r): |(I - P) Q|_2, with P
    the projection on the first space and Q an orthonormal basis of the second (FedRep, Definition 1; RoLoRA's angle
    distance). None where a matrix has less than full column rank."""
    if before.shape[0] < before.shape[1]:
        return None
    (first, r1), (second, r2) = torch.linalg.qr(before), torch.linalg.qr(after)
    for triangle in (r1, r2):
        sizes = torch.linalg.svdvals(triangle)
        if not sizes[-1] > 1e-10 * sizes[0]:
            return None
    return min(1.0, float(torch.linalg.matrix_norm(second - first @ (first.mT @ second), 2)))


def core(matrix: LowRank) -> Tensor:
    """A matrix with the singular values of ``matrix``, as small as its factors allow."""
    return triangle(matrix.up) @ triangle(matrix.down.mT).mT


def triangle(tall: Tensor) -> Tensor:
    """``tall`` in an orthonormal basis of its columns, or ``tall`` itself where the basis makes it no smaller."""
    return torch.linalg.qr(tall, mode="r").R if tall.shape[-2] > tall.shape[-1] else tall
