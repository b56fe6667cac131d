"""Parts of linear methods: a trainer that solves least squares beside :meth:`rondo.algorithm.Trainer.fit`, and
orthonormal bases that do not depend on the signs that a library chooses."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from rondo.algorithm import Fit, Trainer
from rondo.errors import ConfigError
from rondo.params import Params
from rondo.roles import Select


@runtime_checkable
class LeastSquares(Protocol):
    """A trainer of losses that are squared errors."""

    def solve(self, params: Params, *, train: Select) -> Fit:
        """The exact minimiser of each client's loss on all of its rows, over the selected tensors of ``params`` (client
        axis K). Of several minimisers, it is the smallest.

        The loss must be the squared error of an output that is linear in these tensors taken together (an offset is
        allowed); anything else is refused with :class:`rondo.errors.ConfigError`. Raises :class:`ClientFailed`.
        """

    def second_moment(self, params: Params, *, of: Select) -> Tensor:
        """The mean over each client's rows of g g^T, with g the gradient of one row's loss in the ``n`` numbers of the
        selected tensors, in their order: shape (K, n, n). Raises :class:`ClientFailed`.

        FedRep's method of moments is of single rows, which a :class:`Loss` does not show and a method must not see.
        """


def least_squares(trainer: Trainer) -> LeastSquares:
    """``trainer``, if it can do this. Raises :class:`ConfigError` if it cannot."""
    if isinstance(trainer, LeastSquares):
        return trainer
    message = f"{type(trainer).__name__} trains by steps alone, and this method minimises exactly: take another method"
    raise ConfigError.at("algorithm.name", message)


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
