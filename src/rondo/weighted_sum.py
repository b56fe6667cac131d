"""A weighted sum of long vectors, accumulated in float64: what averaging uploads comes down to.

Done by a compiled loop where the installation has one (``_weighted_sum.c``; it is built where there is a C compiler),
otherwise by torch, several times more slowly. For finite numbers the bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

try:
    import rondo._weighted_sum as compiled
except ImportError:
    compiled = None  # type: ignore[assignment]

_TOGETHER = 2**19
"""How many numbers torch adds at a time: more than a call costs, and few enough for a processor's cache."""


def add_weighted(total: Tensor, vectors: Sequence[Tensor], weights: Sequence[float]) -> None:
    """``total += sum_k weights[k] vectors[k]``, in that order, in place; products and sums are each rounded to float64.

    ``total`` (n,) in float64, ``vectors`` (n,) each, of any type of real numbers. Raises ValueError for a vector of
    another length.
    """
    for vector in vectors:
        if vector.shape != total.shape:
            raise ValueError(f"a vector is {tuple(vector.shape)}, the total {tuple(total.shape)}")
    if compiled is not None and _is_plain(total) and all(v.dtype is torch.float32 and _is_plain(v) for v in vectors):
        threads = torch.get_num_threads()
        compiled.add(total.numpy(), tuple(v.numpy() for v in vectors), tuple(weights), threads)
    else:
        _by_torch(total, vectors, weights)


def _is_plain(vector: Tensor) -> bool:
    """Whether its memory can be read as it is: this machine's, in one piece, at an address fit for its type."""
    if vector.requires_grad or vector.is_neg() or not (vector.is_cpu and vector.is_contiguous()):
        return False
    return vector.data_ptr() % vector.element_size() == 0


def _by_torch(total: Tensor, vectors: Sequence[Tensor], weights: Sequence[float]) -> None:
    wide = torch.empty_like(total[:_TOGETHER])
    pieces = [torch.split(vector, _TOGETHER) for vector in vectors]
    for part, *each in zip(torch.split(total, _TOGETHER), *pieces, strict=True):
        room = wide[: len(part)]
        for weight, piece in zip(weights, each, strict=True):  # all while this part is in the processor's cache
            part.add_(room.copy_(piece).mul_(weight))
