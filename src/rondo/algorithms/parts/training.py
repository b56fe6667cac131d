"""Local training: that of most methods, with a quadratic pull towards fixed tensors, and by gradients of one's own."""

from __future__ import annotations

import torch
from torch import Tensor

from rondo.algorithm import Loss, Objective, Trainer, Uploads
from rondo.params import Params, Select, buffer, down, inner, per_client, pick, sq_norm, sub, up, whole

TRAINED = down | up | whole
"""Both factors and the whole tensors."""


def trained_uploads(params: Params, trainer: Trainer) -> Uploads:
    """Uploads of both factors and the whole tensors of ``params`` (client axis K) after the run's local training."""
    return trainer.upload(pick(trainer.fit(params, train=TRAINED).params, TRAINED))


def pulled(lam: float, anchor: Params) -> Objective:
    """The loss + lam / 2 |params - anchor|^2, per client, over the names of ``anchor`` (client axis K)."""

    def objective(params: Params, loss: Loss) -> Tensor:
        near = pick(params, lambda name: name in anchor)
        return loss(params) + lam / 2 * sq_norm(sub(near, anchor))

    return objective


def gradient(loss: Loss, params: Params, wanted: Params, *, attached: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
    """Each client's ``loss`` on the current batch, shape (K,), and its gradient in the tensors of ``wanted``, at
    ``params`` with these in place of their names. The gradient takes part in no graph, nor does the loss unless it is
    ``attached``: then it can be differentiated in all tensors but ``wanted``, such as a local head."""
    at = {n: t.detach().requires_grad_() for n, t in wanted.items()}
    value = loss({**params, **at})
    grads = torch.autograd.grad(
        value.sum(), list(at.values()), retain_graph=attached, allow_unused=True, materialize_grads=True
    )
    return value if attached else value.detach(), dict(zip(at, grads, strict=True))


def mean_gradient(params: Params, select: Select, trainer: Trainer) -> dict[str, Tensor]:
    """The gradient of each client's loss at ``params`` (client axis K) in the selected tensors: the mean over the rows
    of one epoch. Statistics have none, and nothing is trained."""
    select = select & ~buffer
    total = {n: torch.zeros_like(t, memory_format=torch.contiguous_format) for n, t in pick(params, select).items()}

    def noted(trained: Params, loss: Loss) -> Tensor:
        wanted = pick(trained, select)
        value, grads = gradient(loss, trained, wanted)
        for name, grad in grads.items():
            total[name] += per_client(loss.rows.to(grad), grad) * grad
        # The trainer differentiates the value. Its gradient is zero, and so is the step.
        return value + inner(wanted, {n: torch.zeros_like(t) for n, t in wanted.items()})

    fit = trainer.fit(params, train=select, objective=noted, epochs=1, lr=0.0)
    return {n: t / per_client(fit.examples.to(t).clamp_min(1), t) for n, t in total.items()}
