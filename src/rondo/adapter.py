"""The low-rank term of an adapted layer, ``y + B (A x)``, with its products in the order in which a CPU is fast.

A product with a long and a very short side takes up to five times as long in one order as in the other (docs/log.md);
the order that differentiation alone would choose is the slow one for three of the six.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def add_low_rank(y: Tensor, x: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """``y + B (A x)``, B A never formed: ``y`` (K, rows, out), ``x`` (K, rows, in), ``down`` A (K, r, in), ``up`` B
    (K, out, r), all of one type."""
    result: Tensor = _AddLowRank.apply(y, x, down, up)  # type: ignore[no-untyped-call]
    return result


def _narrow(x: Tensor, matrix: Tensor) -> Tensor:
    """``x`` (K, rows, n) times the transpose of ``matrix`` (K, r, n), for a small r."""
    if x.dtype is torch.bfloat16:
        return torch.bmm(matrix, x.mT).mT
    return torch.bmm(x, matrix.contiguous().mT)


class _AddLowRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, down: Tensor, up: Tensor) -> Tensor:
        inner = _narrow(x, down)
        ctx.save_for_backward(x, inner, down, up)
        return torch.baddbmm(y, inner, up.mT)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        x, inner, down, up = ctx.saved_tensors
        _, for_x, for_down, for_up = ctx.needs_input_grad
        d_x = d_down = d_up = None
        if for_up:
            d_up = torch.bmm(inner.mT, grad).mT
        if for_x or for_down:
            d_inner = _narrow(grad, up.mT)
            d_x = torch.bmm(d_inner, down) if for_x else None
            d_down = torch.bmm(d_inner.mT, x) if for_down else None
        return grad, d_x, d_down, d_up
