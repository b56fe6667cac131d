"""The kinds of populations that ``population.py`` deals rows to: their rows, and their runs as configurations.

- ``adapters``: low-rank factors on the last layer of MiniLM, personal tensors and head (``fedsa-lora``)
- ``heads``: a network of two layers, personal head of 2,010 numbers (``fedrep``)
- ``models``: a ResNet-18 of 11 million numbers for every client (``local``)
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORDS = ("good", "bad", "film", "story", "time", "people", "house", "music", "light", "water", "road", "night")


@dataclass(frozen=True)
class Kind:
    """One kind of population."""

    algorithm: str
    """The default method."""
    data: str
    """Name of the data file."""
    write: Callable[[Path, int, int], None]
    """Writes rows to a file: path, number of clients, number of rows."""
    config: Callable[[int], dict[str, Any]]
    """The sections of a run for a number of clients that are not those of all kinds."""


def _write_texts(path: Path, clients: int, rows: int) -> None:
    """Write short sentences with two labels, dealt evenly to ``clients``."""
    draw = random.Random(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label", "client"])
        for number in range(rows):
            label = draw.randrange(2)
            words = [draw.choice(WORDS) for _ in range(8)]
            writer.writerow([" ".join([WORDS[label], *words]), label, f"c{number % clients:06d}"])


def _write_pictures(path: Path, clients: int, rows: int) -> None:
    """Write random pictures of 8 x 8 pixels in ten classes."""
    import numpy as np

    draw = np.random.default_rng(0)
    pictures = draw.integers(0, 256, (rows, 8, 8), dtype=np.uint8)
    np.savez(path, x_train=pictures, y_train=draw.integers(0, 10, rows))


def _of_adapters(clients: int) -> dict[str, Any]:
    return {
        "adapter": {"r": 4, "target_modules": ["query", "value"], "layers_to_transform": [5]},
        "task": {"text": "text", "label": "label", "max_length": 16},
        "partition": {"kind": "natural", "column": "client"},
        # Nearly every client is a new one, so no states of the lower layers would be used twice.
        "simulation": {"reuse_prefix": False},
    }


def _of_network(name: str) -> Callable[[int], dict[str, Any]]:
    return lambda clients: {
        "model": {"name": name},
        "task": {"kind": "image-classification"},
        "partition": {"kind": "iid", "clients": clients},
    }


KINDS = {
    "adapters": Kind("fedsa-lora", "rows.csv", _write_texts, _of_adapters),
    "heads": Kind("fedrep", "rows.npz", _write_pictures, _of_network("builtin:mlp")),
    "models": Kind("local", "rows.npz", _write_pictures, _of_network("builtin:resnet18")),
}
