"""The trainer of linear methods, which solves least squares beside :meth:`rondo.algorithm.Trainer.fit`."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

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
