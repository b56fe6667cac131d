"""Gradient accumulation: the loss on a batch of which only some rows are in one forward pass.

Every part is differentiated in the forward pass, right after its own, so that only one part's activations are in memory
at a time. Sums and numbers of targets are added over the parts, and divided at the end: a client's loss is the mean
over the targets of its whole batch, whatever the parts' sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from rondo.params import Params
from rondo.tasks.task import Example

Part: TypeAlias = Callable[[Params], tuple[Tensor, Tensor]]
"""The sum of the losses of some rows and the number of their targets, both of shape (K,), given the network's
tensors."""


def split(batch: Sequence[Sequence[Example]], size: int | None) -> list[list[Sequence[Example]]]:
    """A batch, one group of examples per client, in parts of at most ``size`` examples of each; None keeps it whole."""
    longest = max(map(len, batch))
    step = longest if size is None else size
    return [[group[start : start + step] for group in batch] for start in range(0, longest, step)]


def mean_loss(parts: Sequence[Part], seen: Params) -> Tensor:
    """Each client's mean loss over the targets of all parts, shape (K,). With several parts it is differentiable once.

    ``seen``: the network's tensors, with a client axis.
    """
    names = [n for n, t in seen.items() if t.requires_grad]
    if len(parts) > 1 and names and torch.is_grad_enabled():
        losses: Tensor = _Accumulated.apply(parts, seen, names, *(seen[n] for n in names))  # type: ignore[no-untyped-call]
        return losses
    sums, counts = _added(part(seen) for part in parts)
    return sums / counts


def _added(pairs: Any) -> tuple[Tensor, Tensor]:
    sums, counts = zip(*pairs, strict=True)
    return sum(sums[1:], sums[0]), sum(counts[1:], counts[0]).clamp_min(1)


class _Accumulated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Sequence[Part], seen: Params, names: Sequence[str], *tensors: Tensor) -> Tensor:
        totals = [torch.zeros_like(t, memory_format=torch.contiguous_format) for t in tensors]

        def differentiated(part: Part) -> tuple[Tensor, Tensor]:
            with torch.enable_grad():
                leaves = [t.detach().requires_grad_() for t in tensors]
                sums, counts = part({**seen, **dict(zip(names, leaves, strict=True))})
                total_loss = sums.sum()
            if sums.requires_grad:
                # A client's sum depends on the client's own tensors only, so one pass gives every client its gradient.
                grads = torch.autograd.grad(total_loss, leaves, allow_unused=True)
                for total, grad in zip(totals, grads, strict=True):
                    if grad is not None:
                        total += grad
            return sums.detach(), counts

        sums, counts = _added(map(differentiated, parts))
        ctx.save_for_backward(counts, *totals)
        return sums / counts

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        counts, *totals = ctx.saved_tensors
        share = grad / counts
        return None, None, None, *(t * share.to(t.dtype).reshape(-1, *[1] * (t.dim() - 1)) for t in totals)
