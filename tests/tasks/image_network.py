"""A linear classifier of pictures in which several clients share a call."""

from typing import Any

import torch
from torch import Tensor, nn

from rondo.models.networks.network import Network
from rondo.tasks.task import Task


class LinearClassifier(Network):
    def __init__(self, config: Any, task: Task) -> None:
        height, width, channels = task.shape  # type: ignore[attr-defined]
        self.module = nn.Identity()
        self.initial = {
            "weight": torch.zeros(len(task.labels), height * width * channels),  # type: ignore[attr-defined]
            "bias": torch.zeros(len(task.labels)),  # type: ignore[attr-defined]
        }

    def __call__(self, params: Any, base: Any, batch: Any, dropout: Any = None, rows: Any = None) -> Tensor:
        pixels = batch["pixel_values"].flatten(1)
        clients = torch.zeros(len(pixels), dtype=torch.long) if rows is None else rows.index
        return torch.einsum("ri,roi->ro", pixels, params["weight"][clients]) + params["bias"][clients]
