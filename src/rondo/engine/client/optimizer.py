"""The optimizer of a local training."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from rondo.config.schema import TrainConfig


def optimizer(
    config: TrainConfig, tensors: Mapping[str, Tensor], lr: float, *, is_up: Callable[[str], bool]
) -> torch.optim.Optimizer:
    """An optimizer of ``tensors`` at the rate ``lr``. B, which ``is_up`` tells by its name, has ``train.lr_ratio``
    times that rate, as in LoRA+ (Hayou et al., 2024)."""
    groups = [
        {"params": [t for n, t in tensors.items() if not is_up(n)], "lr": lr},
        {"params": [t for n, t in tensors.items() if is_up(n)], "lr": lr * config.lr_ratio},
    ]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, weight_decay=config.weight_decay)
    return torch.optim.SGD(groups, momentum=config.momentum, weight_decay=config.weight_decay)
