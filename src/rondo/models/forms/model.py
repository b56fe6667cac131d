"""A model as a run uses it: its outline first, without weights, then the model itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, Problem
from rondo.models.forms.generation import Generation
from rondo.models.loading.lent import Lent
from rondo.models.networks.adapted_layer import Site
from rondo.models.networks.call import output_of
from rondo.models.networks.network import Base, Network
from rondo.models.shortcuts.prefix import Prefix
from rondo.params import Params, add_client_axis, on_device
from rondo.tasks.task import Batch, Example, Predictor, Task

Form = Literal["adapter", "merged", "weights", "tensors"]
"""The form of a result: a PEFT adapter, a whole model of transformers, the state of a module, or the tensors of a
network of one's own."""
Check: TypeAlias = Callable[[Mapping[str, Any]], None]
"""Raises :class:`rondo.errors.ConfigError` if a base model of this identity is not that of a result."""


@dataclass(frozen=True)
class Verification:
    """Outputs of Rondo's network and of stock libraries on the same rows: the largest difference, and the largest
    output.

    >>> verification = rondo.export("runs/digits", "digits-verified", verify=True).verification
    >>> verification.max_difference <= verification.tolerance
    True
    """

    max_difference: float
    largest: float
    tolerance: float = 1e-4
    """The share of the largest output that the difference may be: that of float32, or wider for rounded weights."""

    @property
    def passed(self) -> bool:
        """Whether the difference is within ``tolerance`` of the largest output (float32 rounding)."""
        return self.max_difference <= self.tolerance * max(1.0, self.largest)


class Model(ABC):
    """A loaded model."""

    form: ClassVar[Form]
    """The form in which :meth:`save` writes a result."""
    name: str
    identity: Mapping[str, Any]
    """The manifest's keys that tell it from every other model, as JSON."""
    network: Network
    base_name: str | None = None
    """The name by which others find the base model, for results; None for that on a hub, if it has one."""
    dtype: torch.dtype | None = None
    """The type in which a whole model's weights are written; None for float32."""

    @property
    def pad_token_id(self) -> int | None:
        """The padding token's id, where stock libraries load the base model with none or with another one."""
        return None

    def shorten(self, task: Task, examples: Sequence[Example]) -> tuple[Task, Prefix | None]:
        """Skip computation that the output does not need, checked by comparing outputs on ``examples``. Returns the
        task for the network that is left, and the layers whose output is computed once per example, or None."""
        return task, None

    @abstractmethod
    def record(self) -> Mapping[str, Any]:
        """The manifest's entry: precision, kernels and the shortcuts taken."""

    def generated(self, seen: Params, base: Base, prompts: Sequence[Sequence[int]], how: Generation) -> list[list[int]]:
        """Token ids that follow each prompt (ids). ``seen``: the tensors that the network takes, without a client axis.
        Raises :class:`ConfigError`, also for a prompt that leaves no room."""
        raise ConfigError.at("evaluation.generate", "only a language model of transformers generates: remove it")

    def lend(self, seen: Params, base: Base, train: Collection[str]) -> Lent:
        """The model as PEFT has it, for a trainer of the user's own. ``train``: names of the tensors to train, of those
        ``seen`` (no client axis). Raises TypeError for a model without an adapter."""
        raise TypeError(f"{type(self).__name__} has no PEFT model")

    @abstractmethod
    def save(self, folder: Path, seen: Params, base: Base, labels: Sequence[str]) -> None:
        """Write the result. ``seen`` holds the tensors that the network takes, without a client axis."""

    @abstractmethod
    def read(self, folder: Path) -> tuple[Params, Base]:
        """The tensors that the network takes, without a client axis, and the change of its base, as :meth:`save` wrote
        them and the model was loaded from. Raises :class:`ConfigError`."""

    def truncated(self, seen: Params, base: Base, rank: int) -> tuple[Params, float]:
        """The tensors of an adapter of ``rank`` without a change of the base, and the share of the change's norm that
        is lost. Raises :class:`ConfigError` for a model without an adapter."""
        raise ConfigError.at("--rank", "a model that was trained whole has no adapter to truncate: leave it out")

    @property
    def notes(self) -> Sequence[str]:
        """Sentences about what :meth:`save` writes that its reader may not expect."""
        return ()

    def rank(self, seen: Params, base: Base) -> int:
        """The largest rank in the adapter that :meth:`save` writes; 0 without one."""
        return 0

    def merged(self) -> Model:
        """The model whose results are whole. Default: itself."""
        return self

    def verified(self, folder: Path, seen: Params, base: Base, task: Task, rows: Callable[[], Batch]) -> Verification:
        """Compare outputs with the result in ``folder`` as stock libraries alone load it. ``rows``: reads some inputs
        of the run. Raises :class:`ConfigError`."""
        raise ConfigError.at("--verify", "no stock library loads a network of one's own: leave it out")

    def _compared(
        self, stock: nn.Module, seen: Params, base: Base, batch: Batch, real: Tensor | None = None
    ) -> Verification:
        """``stock`` compared with the network on ``batch``. ``real``: the places (rows, tokens) where outputs per token
        mean something."""
        with torch.no_grad():
            theirs = output_of(stock, batch)
            ours = self.network(add_client_axis(seen), base, batch)
            theirs = theirs.to(ours.dtype)
        if ours.dim() == 3 and real is not None:
            ours, theirs = ours[real], theirs[real]
        return Verification(float((ours - theirs).abs().max()), float(ours.abs().max()))


class Outline(ABC):
    """A model before its weights are loaded. ``problems`` lists everything that its layers and sizes do not allow."""

    task: Task
    sites: Sequence[Site]
    problems: Sequence[Problem]

    @abstractmethod
    def load(self, config: RunConfig, device: torch.device) -> Model:
        """Load the model. Raises :class:`rondo.errors.ConfigError`."""

    def stock(self, config: RunConfig, folder: Path, check: Check) -> tuple[Any, Any]:
        """The result in ``folder`` and its tokenizer as transformers and PEFT alone load them, in float32 on the CPU.
        Raises :class:`rondo.errors.ConfigError`."""
        raise ConfigError.at("model.name", "transformers has no such model: name the run of one that it has")

    def predictor(
        self, config: RunConfig, folder: Path, device: torch.device, how: Generation, check: Check
    ) -> Predictor:
        """The result in ``folder``, to predict with. Default: the network in the task's own precision. Raises
        :class:`rondo.errors.ConfigError`."""
        exact = config.train.model_copy(update={"precision": "exact"})
        model = self.load(config.model_copy(update={"train": exact}), device)
        check(model.identity)
        return NetworkPredictor(model, *model.read(folder), how)


@dataclass(frozen=True)
class NetworkPredictor:
    """A :class:`rondo.tasks.task.Predictor`: Rondo's network with the tensors ``seen`` (no client axis)."""

    model: Model
    seen: Params
    base: Base
    how: Generation

    @property
    def batch_size(self) -> int:
        return self.how.batch_size

    @torch.no_grad()
    def output(self, inputs: Batch) -> Tensor:
        network = self.model.network
        seen = add_client_axis(on_device(self.seen, network.device))
        return network(seen, network.on_device(self.base), on_device(inputs, network.device))

    def generated(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        return self.model.generated(self.seen, self.base, prompts, self.how)
