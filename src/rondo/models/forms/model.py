"""A model as a run uses it: its outline first, without weights, then the model itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import torch

from rondo.config.schema import RunConfig
from rondo.errors import Problem
from rondo.models.networks.adapted_layer import Site
from rondo.models.networks.network import Base, Network
from rondo.models.shortcuts.prefix import Prefix
from rondo.params import Params
from rondo.tasks.task import Example, Task

Form = Literal["adapter", "merged", "weights", "tensors"]
"""The form of a result: a PEFT adapter, a whole model of transformers, the state of a module, or the tensors of a
network of one's own."""


class Model(Protocol):
    """A loaded model."""

    @property
    def name(self) -> str: ...

    @property
    def identity(self) -> Mapping[str, Any]:
        """The manifest's keys that tell it from every other model, as JSON."""

    @property
    def network(self) -> Network: ...

    @property
    def form(self) -> Form:
        """The form in which :meth:`save` writes a result."""

    def shorten(self, task: Task, examples: Sequence[Example]) -> Prefix | None:
        """Skip computation that the output does not need, checked by comparing outputs on ``examples``. Returns the
        layers whose output is computed once per example, or None."""

    def record(self) -> Mapping[str, Any]:
        """The manifest's entry: precision, kernels and the shortcuts taken."""

    def save(self, folder: Path, seen: Params, base: Base, labels: Sequence[str]) -> None:
        """Write the result. ``seen`` holds the tensors that the network takes, without a client axis."""


class Outline(Protocol):
    """A model before its weights are loaded. ``problems`` lists everything that its layers and sizes do not allow."""

    @property
    def task(self) -> Task: ...

    @property
    def sites(self) -> Sequence[Site]: ...

    @property
    def problems(self) -> Sequence[Problem]: ...

    def load(self, config: RunConfig, device: torch.device) -> Model:
        """Load the model. Raises :class:`rondo.errors.ConfigError`."""
