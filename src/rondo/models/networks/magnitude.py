"""Layers whose rows have a trained norm, ``magnitude``: DoRA (Liu et al., Weight-Decomposed Low-Rank Adaptation, 2024).

W' = m * V / |V| with V = W + scale * B A, row by row. The norm |V| counts as a constant in the backward pass (section
4.3), as in PEFT.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


@torch.no_grad()
def row_norms(weight: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """The norms of the rows of W + B A, shape (K, out), without forming B A. All tensors have one type.

    ``weight``: W, (out, in)
    ``down``: A, (K, r, in)
    ``up``: B, (K, out, r), in W's units
    """
    clients, rank = down.shape[:2]
    across = (down.flatten(0, 1) @ weight.mT).reshape(clients, rank, -1).mT
    squares = ((2 * across + up @ (down @ down.mT)) * up).sum(2)
    whole: Tensor = torch.linalg.vector_norm(weight, dim=1).square() + squares
    return whole.clamp_min(0).sqrt()


def stretched(output: Tensor, factor: Tensor, bias: Tensor | None, tokens: Sequence[int] | None) -> Tensor:
    """``output``, a layer's V x + bias (..., out) ordered by client, as factor * V x + bias.

    ``factor``: m / |V|, (K, out)
    ``tokens``: of each client; None where all have as many
    """
    flat = output.reshape(len(factor) if tokens is None else 1, -1, output.shape[-1])
    added = flat.new_zeros(()) if bias is None else bias.to(flat.dtype)
    factor = factor.to(flat.dtype)
    if tokens is None:
        return ((flat - added) * factor[:, None] + added).reshape(output.shape)
    parts = zip(torch.split(flat[0], list(tokens)), torch.split(factor, 1), strict=True)
    return torch.cat([(part - added) * own + added for part, own in parts]).reshape(output.shape)


def normalised(weight: Tensor, magnitude: Tensor) -> Tensor:
    """``weight`` V (out, in) with rows of the norms ``magnitude`` (out,)."""
    norms: Tensor = torch.linalg.vector_norm(weight.detach(), dim=1)
    return weight * (magnitude / norms)[:, None]
