"""A client's upload that learned nothing, found by running the algorithm itself with a trainer that does not train."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Fit, FitOptions, Round, Shared, Trainer, Upload, Uploads
from rondo.params import Params, Select, add_client_axis, client_row, pick


def trial_upload(algorithm: Algorithm[Any], shared: Shared, client: Client, round: Round) -> Upload:
    """The upload of ``client`` that was sent ``shared`` and learned nothing, with the names, shapes and types of a real
    one. Its weight is NaN where the run sets the weight and not the algorithm."""
    local = add_client_axis(algorithm.local_init(shared, client))
    received = replace(shared, params=add_client_axis(shared.params))
    (upload,), _ = algorithm.client_update(received, local, _Idle((client,), round))
    return upload


def trial_fits(algorithm: Algorithm[Any], shared: Shared, client: Client, round: Round) -> list[FitOptions]:
    """The local trainings of ``client`` in ``round``."""
    local = add_client_axis(algorithm.local_init(shared, client))
    trainer = _Idle((client,), round)
    algorithm.client_update(replace(shared, params=add_client_axis(shared.params)), local, trainer)
    return trainer.fits


@dataclass
class _Idle(Trainer):
    """A trainer that returns the tensors it is given, and notes what it was asked for."""

    clients: tuple[Client, ...]
    round: Round
    lr: float = 1.0
    fits: list[FitOptions] = field(default_factory=list)

    def fit_with(self, params: Params, options: FitOptions) -> Fit:
        self.fits.append(options)
        zeros = torch.zeros(len(self.clients))
        return Fit(params, zeros, zeros, zeros)

    def solve(self, params: Params, *, train: Select) -> Fit:
        return self.fit(params)

    def second_moment(self, params: Params, *, of: Select) -> Tensor:
        selected = pick(params, of).values()
        size = sum(t[0].numel() for t in selected)
        like = next(iter(selected), torch.zeros(0))
        return like.new_zeros(len(self.clients), size, size)

    def upload(self, params: Params, weight: Tensor | None = None) -> Uploads:
        weights = [math.nan] * len(self.clients) if weight is None else weight.tolist()
        return tuple(Upload(c, client_row(params, k), weights[k]) for k, c in enumerate(self.clients))
