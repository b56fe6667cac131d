"""The networks, clients and pictures that the contestants of ``simulation.py`` train whole."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

CLASSES = 10
HEAD = "fc3."
"""Prefix of the parameters in the head of ``builtin:cnn``."""


@dataclass(frozen=True)
class ImageWorkload:
    """One built-in network and one population, of which some clients take part in a round, for one epoch."""

    name: str
    network: str
    """``model.name`` of the network."""
    image: tuple[int, int, int]
    """Height, width and channels of a picture."""
    population: int
    clients: int
    """Clients per round."""
    samples: int
    """Pictures per client."""
    batch: int
    lr: float
    momentum: float
    rank: int | None = None
    """Rank of the factors on the convolutions in ``layer1`` to ``layer4``, with scale 1; None: no factors."""
    head_epochs: int = 0
    """Epochs of the personal head before the epoch of the body (FedRep); 0: the head is shared (FedAvg)."""
    seed: int = 0

    @property
    def samples_per_round(self) -> int:
        """Pictures that all clients together train on per round, repetitions counted."""
        return self.clients * self.samples * (1 + self.head_epochs)


_W6 = ImageWorkload("W6", "builtin:cnn", (32, 32, 3), 100, 20, 250, batch=10, lr=0.01, momentum=0.5)
"""FedRep's 5-layer CNN on CIFAR-10; its official code has batches of 10, a rate of 0.01 and a momentum of 0.5."""

IMAGE_WORKLOADS = {
    w.name: w
    for w in (
        _W6,
        # FedLoRU's ResNet-10 on Fashion-MNIST: between two accumulations FedLoRU averages the factors, as FedIT. The
        # paper has momentum 0.9, ranks from 16 to 128, 1,200 pictures for each of 50 clients, and five epochs.
        ImageWorkload("W7", "builtin:resnet10", (28, 28, 1), 50, 10, 128, batch=32, lr=0.01, momentum=0.9, rank=32),
        # FedRep itself on W6: ten epochs of the head, one of the body.
        replace(_W6, name="W6-fedrep", head_epochs=10),
        # They show that a program works, and nothing else.
        replace(_W6, name="W6-smallest", population=2, clients=2, samples=4),
        replace(_W6, name="W6-fedrep-smallest", population=2, clients=2, samples=4, head_epochs=1),
    )
}


def write_images(workload: ImageWorkload, file: Path) -> None:
    """Write the pictures and labels of the population as npz, client after client: noise about a pattern of the class,
    so that a network can learn it."""
    import numpy as np

    draw = np.random.default_rng(workload.seed)
    labels = draw.integers(0, CLASSES, workload.population * workload.samples)
    patterns = draw.integers(64, 192, (CLASSES, *workload.image))
    noise = draw.integers(-64, 64, (len(labels), *workload.image), dtype=np.int16)
    np.savez(file, x_train=(patterns[labels] + noise).astype(np.uint8), y_train=labels)
