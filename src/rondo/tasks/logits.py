"""Logits in the precision that a loss needs."""

from __future__ import annotations

from torch import Tensor


def wide(logits: Tensor) -> Tensor:
    """Cast bfloat16 logits to float32, which a loss needs; return wider ones as they are."""
    return logits.float() if logits.element_size() < 4 else logits
