"""The rows that private steps draw: how many in expectation, with which probability, and in how many steps.

All of it follows from numbers that are told anyway, so a server counts a client's steps without knowing a draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rondo.config.schema import TrainConfig

if TYPE_CHECKING:  # it needs torch, and a plan for rows does not
    from rondo.algorithm import FitOptions


@dataclass(frozen=True)
class Draws:
    """The draws of a client with ``rows`` rows, at ``size`` rows per step (``train.batch_size``)."""

    size: int
    rows: int

    @property
    def expected(self) -> int:
        """Expected rows of a step."""
        return min(self.size, self.rows)

    @property
    def probability(self) -> float:
        """The probability of each unit to be in a step: of a row, or of a person with all rows."""
        return self.expected / max(1, self.rows)

    def steps(self, steps: int | None, epochs: int) -> int:
        """The number of steps of a local training: ``steps``, or as many as see the rows ``epochs`` times in
        expectation."""
        return epochs * -(-self.rows // max(1, self.expected)) if steps is None else steps


def private_steps(fits: Sequence[FitOptions], config: TrainConfig, rows: int) -> int:
    """The private steps of ``fits``, of a client with ``rows`` rows, as the server and the client foresee them."""
    draws, total = Draws(config.batch_size, rows), 0
    for fit in fits:
        named = fit.steps is not None or fit.epochs is not None
        steps, epochs = (fit.steps, fit.epochs) if named else (config.local_steps, config.local_epochs)
        total += draws.steps(steps, 1 if epochs is None else epochs)
    return total
