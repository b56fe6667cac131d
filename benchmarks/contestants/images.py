"""Parts that the contestants on pictures share: the network, every client's pictures, and plain local training."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import contestant  # noqa: F401  (puts this folder's parent on the path, and notes the start)
import torch
from image_workloads import CLASSES, ImageWorkload
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class LowRankConv2d(nn.Module):
    """A frozen convolution of zeros and a trained one in two factors: to ``rank`` channels, then 1x1 to all.

    Source: FedLoRU's official code, which computes the frozen convolution too: it is zero only until the factors are
    added to it for the first time.
    """

    def __init__(self, base: nn.Conv2d, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        nn.init.zeros_(base.weight)
        self.down = nn.Conv2d(base.in_channels, rank, base.kernel_size, base.stride, base.padding, bias=False)
        self.up = nn.Conv2d(rank, base.out_channels, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.up(self.down(x))
        return y


def build_network(workload: ImageWorkload) -> nn.Module:
    """The network that Rondo trains too, drawn by torch's own initialisers; in training mode."""
    from rondo.models.forms.builtin.classical import NETWORKS, Sizes

    torch.manual_seed(workload.seed)
    height, width, channels = workload.image
    network = NETWORKS[workload.network](Sizes((channels, height, width), CLASSES, norm="batch"))
    if workload.rank is not None:
        for path, layer in list(network.named_modules()):
            if isinstance(layer, nn.Conv2d) and path.startswith("layer") and "downsample" not in path:
                network.set_submodule(path, LowRankConv2d(layer, workload.rank))
    return network.train()


def trained(model: nn.Module) -> list[nn.Parameter]:
    """The tensors that are trained."""
    return [p for p in model.parameters() if p.requires_grad]


def count(model: nn.Module) -> int:
    """Number of trained parameters."""
    return sum(p.numel() for p in trained(model))


def sent(model: nn.Module) -> dict[str, Tensor]:
    """The part of the model's state that clients send: everything but frozen weights."""
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    return {name: t for name, t in model.state_dict().items() if name not in frozen}


@functools.cache
def clients(workload: ImageWorkload, file: Path) -> list[TensorDataset]:
    """The pictures (float32, 0 to 1) and labels of every client, read once per process."""
    import numpy as np

    with np.load(file) as arrays:
        pictures = torch.from_numpy(arrays["x_train"]).permute(0, 3, 1, 2).contiguous().float().div_(255)
        labels = torch.from_numpy(arrays["y_train"])
    return list(map(TensorDataset, pictures.split(workload.samples), labels.split(workload.samples)))


def train(
    model: nn.Module,
    workload: ImageWorkload,
    batches: Iterable[Any],
    epochs: int = 1,
) -> tuple[float, int]:
    """Train one client in place, with a fresh optimizer. Returns the mean loss of the steps and the number of pictures
    per epoch."""
    optimizer = torch.optim.SGD(trained(model), lr=workload.lr, momentum=workload.momentum)
    losses, seen = [], 0
    for pictures, labels in (batch for _ in range(epochs) for batch in batches):
        loss = nn.functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
        seen += len(labels)
    return float(torch.stack(losses).mean()), seen // epochs


def loader(workload: ImageWorkload, dataset: TensorDataset) -> DataLoader[Any]:
    """Shuffled batches."""
    return DataLoader(dataset, batch_size=workload.batch, shuffle=True)
