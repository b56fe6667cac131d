"""Gradient of a step with example-level differential privacy (DP-SGD, Abadi et al. 2016).

Every row is a client of its own: client code is batch-transparent, so an algorithm's objective gives one loss per row
unchanged, and one backward pass gives one gradient per row. Terms of the objective that depend on parameters only are
in each row's gradient and are clipped with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rondo.params import Params
from rondo.privacy.secret import SecretStream


def row_gradients(trained: Params, owner: Tensor, objective: Callable[[Params], Tensor]) -> dict[str, Tensor]:
    """Gradient of each row's objective by tensor, (rows, ...).

    ``trained``: tensors with the client axis, (K, ...).
    ``owner``: the client of each row, (rows,).
    ``objective``: losses (rows,) of tensors (rows, ...), one set of tensors per row.
    """
    leaves = {n: t.detach()[owner.to(t.device)].requires_grad_() for n, t in trained.items()}
    value = objective(leaves)
    grads = torch.autograd.grad(value.sum(), list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, grads, strict=True))


def clipped_sums(
    gradients: Params, owner: Tensor, clients: int, clip: float, unit: Tensor | None = None
) -> dict[str, Tensor]:
    """Sum over each client's units of their gradients, each scaled to an L2 norm of at most ``clip`` over all tensors:
    float64, (K, ...).

    ``gradients``: by tensor, (rows, ...).
    ``owner``: the client of each row, (rows,).
    ``unit``: number of each row's unit, (rows,), where rows of one person are one unit; no unit has rows of two
    clients. None: each row is a unit.

    Units whose norm is not finite count as zero: one bad row must neither stop the step nor pass the clip.
    """
    exact = {n: g.double() for n, g in gradients.items()}
    if unit is not None:
        names, place = torch.unique(unit, return_inverse=True)
        exact = {n: _summed(g, place, len(names)) for n, g in exact.items()}
        owner = torch.zeros(len(names), dtype=owner.dtype, device=owner.device).scatter_(0, place, owner)
    norm = torch.stack([torch.linalg.vector_norm(g.flatten(1), dim=1) for g in exact.values()])
    norm = torch.linalg.vector_norm(norm, dim=0)
    scale = torch.where(norm > clip, clip / norm, torch.ones_like(norm))
    sums = {}
    for name, gradient in exact.items():
        shape = (-1,) + (1,) * (gradient.dim() - 1)
        kept = torch.where(norm.isfinite().reshape(shape), gradient * scale.reshape(shape), 0.0)
        sums[name] = _summed(kept, owner, clients)
    return sums


def add_noise(sums: Params, deviation: float, streams: Sequence[SecretStream], expected: Tensor) -> dict[str, Tensor]:
    """``(sums + N(0, deviation^2)) / expected``, float64, (K, ...). A client without rows gets its noise too.

    ``deviation``: noise multiplier times clip.
    ``streams``: each client's own, K of them.
    ``expected``: expected number of units per step, (K,), known beforehand: the drawn number is a secret.
    """
    result = {}
    for name, total in sums.items():
        noise = torch.stack([s.normal(total[0].numel()) for s in streams]).reshape(total.shape).to(total.device)
        result[name] = (total + deviation * noise) / expected.to(total).reshape((-1,) + (1,) * (total.dim() - 1))
    return result


def _summed(values: Tensor, place: Tensor, size: int) -> Tensor:
    return values.new_zeros((size, *values.shape[1:])).index_add_(0, place.to(values.device), values)
