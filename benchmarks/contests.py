"""All workloads of ``simulation.py`` by name, and the contestants and data of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from image_workloads import IMAGE_WORKLOADS, ImageWorkload, write_images
from linear_workload import LINEAR_WORKLOADS, LinearWorkload, write_problem
from workloads import WORKLOADS, Workload, write_rows

Work: TypeAlias = Workload | ImageWorkload | LinearWorkload
WORKS: Mapping[str, Work] = {**WORKLOADS, **IMAGE_WORKLOADS, **LINEAR_WORKLOADS}


@dataclass(frozen=True)
class Peer:
    """A contestant beside Rondo."""

    script: tuple[str, ...]
    """The script in ``contestants/``, and its options."""
    package: str | None = None
    """The package that it needs besides Rondo's own."""


@dataclass(frozen=True)
class Contest:
    """The contestants of a kind of workload, and its data."""

    peers: Mapping[str, Peer]
    data: str
    """Name of the data file."""
    write: Callable[[Any, Path], None]
    """Writes the workload's data to a file."""
    precisions: tuple[str, ...] = ("exact",)
    """Rondo's precisions that differ on such work."""


_ADAPTERS = Contest(
    {
        "loop": Peer(("adapter_loop",)),
        "compiled": Peer(("adapter_loop", "--compile")),
        "flower": Peer(("adapter_flower",), "flwr"),
        "pfl": Peer(("adapter_pfl",), "pfl"),
    },
    "train.csv",
    write_rows,
    ("fast", "exact"),
)
_IMAGES = Contest(
    {
        "loop": Peer(("image_loop",)),
        "flower": Peer(("image_flower",), "flwr"),
        "pfl": Peer(("image_pfl",), "pfl"),
        "blazefl": Peer(("image_blazefl",), "blazefl"),
        "fluke": Peer(("image_fluke",), "fluke"),
    },
    "train.npz",
    write_images,
    ("fast", "exact"),
)
_HEADS = Contest({"loop": Peer(("fedrep_loop",))}, "train.npz", write_images, ("fast", "exact"))
_LINEAR = Contest(
    {"loop": Peer(("linear_loop",)), "flower": Peer(("linear_flower",), "flwr")}, "problem.npz", write_problem
)
PEERS = tuple(dict.fromkeys(name for contest in (_ADAPTERS, _IMAGES, _LINEAR) for name in contest.peers))
"""Names of all peers."""


def contest_of(work: Work) -> Contest:
    """The contest of a workload."""
    if isinstance(work, LinearWorkload):
        return _LINEAR
    if isinstance(work, ImageWorkload):
        return _HEADS if work.head_epochs else _IMAGES
    return _ADAPTERS
