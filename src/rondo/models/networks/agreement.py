"""Whether two ways through a network agree, up to the rounding of its coarsest type."""

from __future__ import annotations

import torch
from torch import Tensor

from rondo.models.networks.network import Network


def rounding(network: Network, *also: torch.dtype) -> float:
    """The relative spacing of numbers in the coarsest of the network's types and those it computes in ``also``. The
    output's type does not tell: a head of float32 ends a body of bfloat16. Rounding leaves half of a type's digits
    right in a norm over rows or a tensor, and rows that are mixed up leave none, so its root is what two ways may
    differ by. Types of a single byte are how weights are kept, and no layer between them computes in one."""
    kept = {p.dtype for p in network.module.parameters() if p.is_floating_point()}
    types = {t for t in kept if t.itemsize > 1} | set(also)
    return max(torch.finfo(t).eps for t in types)


def agree(found: Tensor, expected: Tensor, allowed: float, floor: float = 0.0) -> bool:
    """Whether both have one shape and differ by at most ``allowed`` of the norm of ``expected``, or of ``floor`` if
    that is larger."""
    if found.shape != expected.shape:
        return False
    return float((found - expected).norm()) <= allowed * max(float(expected.norm()), floor)
