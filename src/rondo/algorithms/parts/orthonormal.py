"""Orthonormal bases that do not depend on the signs that a library chooses."""

from __future__ import annotations

import torch
from torch import Tensor


def orthonormal_rows(matrix: Tensor) -> Tensor:
    """``matrix`` (k, d) with k <= d, its rows made orthonormal by QR in float64; a single row is divided by its norm.
    R has a positive diagonal, so rows that are orthonormal stay as they are."""
    q, r = torch.linalg.qr(matrix.double().mT)
    signs = torch.where(r.diagonal() < 0, -1.0, 1.0)
    rows: Tensor = (q * signs).mT
    return rows.contiguous().to(matrix.dtype)


def leading_rows(moment: Tensor, count: int) -> Tensor:
    """The ``count`` leading eigenvectors of a symmetric matrix (d, d) as rows, (count, d). The entry of largest
    magnitude of each is positive."""
    vectors = torch.linalg.eigh(moment.double()).eigenvectors[:, -count:].flip(1).mT
    largest = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
    rows: Tensor = vectors * torch.where(largest < 0, -1.0, 1.0)
    return rows.contiguous().to(moment.dtype)
