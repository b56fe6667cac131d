"""The private steps of a client, as the server and its clients foresee them."""

from __future__ import annotations

from collections.abc import Sequence

from rondo.algorithm import FitOptions
from rondo.config.schema import TrainConfig
from rondo.privacy.mechanism.draws import Draws


def private_steps(fits: Sequence[FitOptions], config: TrainConfig, rows: int) -> int:
    """The private steps of ``fits``, of a client with ``rows`` rows."""
    draws, total = Draws(config.batch_size, rows), 0
    for fit in fits:
        named = fit.steps is not None or fit.epochs is not None
        steps, epochs = (fit.steps, fit.epochs) if named else (config.local_steps, config.local_epochs)
        total += draws.steps(steps, 1 if epochs is None else epochs)
    return total
