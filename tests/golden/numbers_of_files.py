"""The numbers of golden files as tensors, and factors up to sign."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rondo.params import Role, role


def tensors(tree: Any) -> Any:
    """Nested lists of numbers as float64 tensors; dicts keep their keys."""
    if isinstance(tree, dict):
        return {k: tensors(v) for k, v in tree.items()}
    return torch.tensor(tree, dtype=torch.float64)


def signed(name: str, tensor: Tensor) -> Tensor:
    """The entry of largest magnitude of every row of A, and of every column of B, made positive."""
    if role(name) not in (Role.DOWN, Role.UP) or not tensor.numel():
        return tensor
    axis = 1 if role(name) is Role.DOWN else 0
    largest = tensor.gather(axis, tensor.abs().argmax(axis, keepdim=True))
    return tensor * torch.where(largest < 0, -1.0, 1.0).to(tensor.dtype)
