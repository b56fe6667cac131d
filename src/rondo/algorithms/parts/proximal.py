"""A quadratic pull towards fixed tensors, added to a client's loss."""

from __future__ import annotations

from torch import Tensor

from rondo.algorithm import Loss, Objective
from rondo.params import Params, pick, sq_norm, sub


def pulled(lam: float, anchor: Params) -> Objective:
    """The loss + lam / 2 |params - anchor|^2, per client, over the names of ``anchor`` (client axis K)."""

    def objective(params: Params, loss: Loss) -> Tensor:
        near = pick(params, lambda name: name in anchor)
        return loss(params) + lam / 2 * sq_norm(sub(near, anchor))

    return objective
