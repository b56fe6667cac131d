"""A change of full rank in a network that knows factors only."""

from __future__ import annotations

import torch
from torch import Tensor


def beside(full: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """A (n + r, in) and B (out, n + r), n = min(in, out), whose product is ``full`` (out, in) + ``b`` (out, r) ``a``
    (r, in): an identity stands beside ``full``. A client axis may lead; differentiable."""
    out, inp = full.shape[-2:]
    one = torch.eye(min(out, inp), dtype=full.dtype, device=full.device).expand(*full.shape[:-2], -1, -1)
    left, right = (one, full) if out <= inp else (full, one)
    return torch.cat([right, a], -2), torch.cat([left, b], -1)
