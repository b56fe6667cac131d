"""A model as a run uses it: first its outline, without weights, then the model itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from rondo.config.schema import RunConfig
from rondo.errors import Problem
from rondo.models.adapted_layer import Site
from rondo.models.network import Base, Network
from rondo.models.shortcuts.prefix import Prefix
from rondo.params import Params
from rondo.tasks.task import Example, Task


class Model(Protocol):
    """A loaded model."""

    @property
    def name(self) -> str: ...

    @property
    def sha256(self) -> str:
        """Of all its weights."""

    @property
    def network(self) -> Network: ...

    def shorten(self, task: Task, examples: Sequence[Example]) -> Prefix | None:
        """Leave out what need not be computed, as far as the model computes the same on ``examples`` without it. The
        layers whose output is computed once per example, if there are any, are returned."""

    def record(self) -> Mapping[str, Any]:
        """For the manifest: precision, kernels, and what was left out."""

    def save(self, folder: Path, seen: Params, base: Base, labels: Sequence[str]) -> None:
        """Write a result. ``seen``: the tensors that the network takes, no client axis."""


class Outline(Protocol):
    """A model before its weights are loaded. ``problems``: everything that its layers and sizes do not allow."""

    @property
    def task(self) -> Task: ...

    @property
    def sites(self) -> Sequence[Site]: ...

    @property
    def problems(self) -> Sequence[Problem]: ...

    def load(self, config: RunConfig, device: torch.device) -> Model:
        """The model. Raises :class:`rondo.errors.ConfigError`."""
