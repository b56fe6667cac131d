"""The local training of most methods: of everything that the network has, by the run's settings."""

from __future__ import annotations

from rondo.algorithm import Trainer, Uploads
from rondo.params import Params, down, pick, up, whole

TRAINED = down | up | whole
"""Both factors and the whole tensors."""


def trained_uploads(params: Params, trainer: Trainer) -> Uploads:
    """Uploads of both factors and the whole tensors of ``params`` (client axis K) after the run's local training."""
    return trainer.upload(pick(trainer.fit(params, train=TRAINED).params, TRAINED))
