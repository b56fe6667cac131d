"""A small run of every kind of method, and its outcome, for tests that runs are equal wherever clients train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from records import timeless
from small_runs import reviews, save_tiny_bert, settings, write_rows

KINDS = {
    "shared factors": ("rolora", {"head": "shared"}),
    "a personal head": ("rolora", {"head": "local"}),
    "personal factors": ("fedsa-lora", {"head": "shared"}),
    "states on both sides": ("scaffold", {"head": "shared"}),
    "a base that grows": ("fedex-lora", {"head": "shared"}),
    "whole tensors": ("fedrep", {}),
    "a linear problem": ("rolora-linear", {}),
}
"""Method and model section by kind of method."""


class Pixels(nn.Module):
    """A convolution with batch normalisation, and a dense layer."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.out = nn.Linear(4 * 9, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.norm(self.conv(x))).flatten(1))  # type: ignore[no-any-return]


def pixels(config: Any, task: Any) -> nn.Module:
    return Pixels(len(task.labels))


def pictures(count: int) -> list[dict[str, Any]]:
    """Pictures of 5 x 5 pixels, brighter in the row of their label."""
    g = np.random.default_rng(0)
    made = []
    for i in range(count):
        image = g.integers(0, 120, (5, 5, 1), dtype=np.uint8)
        image[1 + i % 3] += 120
        made.append({"image": image, "label": str(i % 3)})
    return made


def make_sources(folder: Path) -> Path:
    """Save a model and rows in ``folder``; return it."""
    save_tiny_bert(folder / "bert")
    write_rows(folder / "rows.csv", reviews(60))
    return folder


def configured(kind: str, sources: Path, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The configuration of a run of ``kind``, three rounds of three of four clients, and the rows it is given."""
    name, model = KINDS[kind]
    base: dict[str, Any] = {"rounds": 3, "algorithm": {"name": name}, "clients": {"per_round": 3}}
    base |= {"simulation": {"cohort": 1}, "evaluation": {"diagnostics_every": 2}}
    if kind == "a linear problem":
        base |= {
            "model": {"name": "builtin:linear"},
            "task": {"kind": "linear"},
            "data": {"source": "builtin:linear", "validation_fraction": 0.0},
            "problem": {"clients": 4, "rows": 8, "inputs": 4, "noise": 0.1},
            "train": {"optimizer": "sgd", "lr": 0.2, "max_grad_norm": 0.0},
        }
        return base | changes, {}
    if kind == "whole tensors":
        base |= {
            "task": {"kind": "image-classification", "image": "image", "label": "label"},
            "model": {"name": "kinds_of_runs:pixels"},
            "partition": {"kind": "iid", "clients": 4},
            "train": {"what": "all", "optimizer": "sgd", "lr": 0.2, "batch_size": 8, "max_grad_norm": 0.0},
        }
        return base | changes, {"train": pictures(80), "test": pictures(20)}
    base |= {
        "model": model,
        "data": {"source": str(sources / "rows.csv"), "test_split": "", "validation_fraction": 0.25},
        "partition": {"clients": 4},
        "train": {"local_epochs": 1, "batch_size": 4},
    }
    return settings(sources / "bert", **{**base, **changes}), {}


def outcome(run_dir: Path) -> dict[str, Any]:
    """Everything that a run has decided: the bytes of its tensors, and its records without seconds."""
    files = [*(run_dir / "adapter").rglob("*.safetensors"), *(run_dir / "checkpoint").rglob("*.safetensors")]
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {
        "tensors": {str(f.relative_to(run_dir)): f.read_bytes() for f in sorted(files)},
        "records": [timeless(record) for record in records],
    }
