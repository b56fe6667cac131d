"""Uploads as vectors: what a client added to the upload of a client that learned nothing.

Bounds, noise and masks are about this change. An upload itself may be large where nothing was learned: FLoRG's and
FedSVD's are in other coordinates than the broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rondo.messages import Mean, Upload
from rondo.params import Layout, Packed, Params


@dataclass(frozen=True)
class Changes:
    """The changes of one round's uploads, whose coordinates are those of the server.

    ``nothing``: the upload of a client that learned nothing, in float64, (n,).
    ``layout``: name and shape of each of its tensors.
    """

    nothing: Tensor
    layout: Layout

    @staticmethod
    def around(nothing: Params) -> Changes:
        """The changes of uploads from ``nothing``."""
        packed = Packed.of({name: tensor.double() for name, tensor in nothing.items()})
        return Changes(packed.vector.double(), packed.layout)

    def of(self, upload: Upload) -> Tensor:
        """The change of ``upload``, (n,) in float64. Raises ValueError if names or shapes are others."""
        params = upload.params
        if params.keys() != {name for name, _ in self.layout}:
            raise ValueError(f"client {upload.client.id} uploaded other tensors")
        for name, shape in self.layout:
            if params[name].shape != shape:
                raise ValueError(f"client {upload.client.id}: {name} is {tuple(params[name].shape)}")
        parts = [params[name].reshape(-1).double() for name, _ in self.layout]
        return (torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64)) - self.nothing

    def mean(self, total: Tensor, weight: float, count: int) -> Mean:
        """The mean of ``count`` uploads whose weighted changes sum to ``total``, (n,), and weights to ``weight``."""
        return Mean(Packed(self.nothing + total / weight, self.layout), weight, count)
