"""A network that the user writes, named by its factory: ``model.name = "package.module:factory"``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import safetensors.torch
import torch
from torch import Tensor, nn

from rondo import own_code
from rondo.config import task_kinds as tasks
from rondo.config.inputs import AdapterConfig
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, Problem
from rondo.lowrank import GrowingSum, LowRank
from rondo.models.forms.builtin.outline import unused
from rondo.models.forms.model import Form, Model, Outline
from rondo.models.forms.module import WholeModel, whole_model
from rondo.models.loading import peft
from rondo.models.loading.pretrained import fingerprint
from rondo.models.networks.adapted_layer import Site
from rondo.models.networks.network import Base, Network
from rondo.params import Params
from rondo.process import seeded
from rondo.tasks.make import make as make_task
from rondo.tasks.make import task_class
from rondo.tasks.task import Task

RESULT = "tensors.safetensors"


@dataclass(frozen=True)
class OwnModel(Model):
    """A :class:`rondo.models.forms.model.Model` around the network that a factory made. No shortcut is taken."""

    name: str
    identity: Mapping[str, Any]
    network: Network
    precision: torch.dtype

    form: ClassVar[Form] = "tensors"

    def record(self) -> Mapping[str, Any]:
        reason = "a network of one's own is used as it is"
        return {"kernels": {"dtype": str(self.precision).removeprefix("torch."), "reason": reason}}

    def save(self, folder: Path, seen: Params, base: Base, labels: Sequence[str]) -> None:
        """Write the tensors that the network takes, and the change of its base, to one safetensors file: factors as
        ``base:<path>.up`` and ``base:<path>.down``, a dense matrix as ``base:<path>``."""
        folder.mkdir(parents=True, exist_ok=True)
        changes: dict[str, Tensor] = {}
        for path, change in base.items():
            if change.dense is not None:
                changes[_BASE + path] = change.dense
            else:
                changes |= {f"{_BASE}{path}.up": change.recent.up, f"{_BASE}{path}.down": change.recent.down}
        tensors = {n: t.cpu().contiguous().clone() for n, t in {**seen, **changes}.items()}
        safetensors.torch.save_file(tensors, folder / RESULT)
        peft.write_labels(folder, labels)

    def read(self, folder: Path) -> tuple[Params, Base]:
        """Raises :class:`ConfigError` for tensors of another network."""
        file = folder / RESULT
        try:
            tensors = safetensors.torch.load_file(file)
        except (OSError, safetensors.SafetensorError) as error:
            raise ConfigError.at("ADAPTER_DIR", f"{str(file)!r} cannot be read: {error}") from None
        changes = {n.removeprefix(_BASE): tensors.pop(n) for n in [*tensors] if n.startswith(_BASE)}
        shapes, wanted = ({n: t.shape for n, t in part.items()} for part in (tensors, self.network.initial))
        if shapes != wanted:
            message = f"the tensors in {str(file)!r} are not those that {self.name!r} takes: name another folder"
            raise ConfigError.at("ADAPTER_DIR", message)
        base: dict[str, GrowingSum] = {}
        for name, tensor in changes.items():
            path, _, kind = name.rpartition(".")
            if kind == "up":
                base[path] = GrowingSum.of(LowRank(tensor, changes[f"{path}.down"]))
            elif kind != "down":
                base[name] = GrowingSum.of(LowRank.whole(tensor))
        return tensors, base


_BASE = "base:"
"""Beginning of the names of a result's tensors that are a change of the base."""


@dataclass(frozen=True)
class OwnOutline(Outline):
    """An :class:`rondo.models.forms.model.Outline`. The factory is called on load."""

    task: Task
    name: str
    sites: Sequence[Site] = ()
    problems: Sequence[Problem] = ()

    def load(self, config: RunConfig, device: torch.device) -> OwnModel | WholeModel:
        """A ``torch.nn.Module`` is trained as the configuration says."""
        network = self._made(config)
        if isinstance(network, nn.Module):
            return whole_model(config, lambda: self._made(config), self.task, device)
        if not isinstance(network, Network):
            message = f"{self.name!r} gave a {type(network).__name__}, not a torch.nn.Module or a "
            raise ConfigError.at("model.name", message + "rondo.models.networks.network.Network")
        if problems := list(_unused_by_network(config)):
            raise ConfigError(problems)
        network.move(device)
        precision = self.task.precision
        for name, tensor in network.initial.items():
            if name.startswith(_BASE):
                message = f"{self.name!r} gave a tensor named {name!r}: names that begin with base: are Rondo's own"
                raise ConfigError.at("model.name", message)
            if tensor.is_floating_point() and tensor.dtype is not precision:
                message = f"{self.name!r} gave {name} in {tensor.dtype}, and the task computes in {precision}"
                raise ConfigError.at("model.name", message)
        return OwnModel(self.name, {"model_sha256": fingerprint(network.module)}, network, precision)

    def _made(self, config: RunConfig) -> Any:
        """Call the factory, with torch seeded from the run's seed. Raises :class:`ConfigError`."""
        try:
            factory = own_code.load(self.name)
            with seeded(config.seed):
                return factory(config, self.task)
        except Exception as error:  # the user's module may raise anything
            message = f"{self.name!r} makes no network: {own_code.reason(error)}"
            raise ConfigError.at("model.name", message) from None


def look(config: RunConfig, labels: Sequence[str]) -> OwnOutline:
    """Outline a user's network: only its task is known, without a tokenizer. Raises :class:`ConfigError` for a task on
    text."""
    kind = config.task.kind
    if kind in tasks.TABLE and tasks.TABLE[kind].inputs == "text":
        message = f"a network of one's own has no tokenizer, which {kind} needs: name a task as package.module:Class"
        raise ConfigError.at("task.kind", message)
    task_class(kind)  # its faults are told apart from those of making it
    try:
        task = make_task(config, None, labels)
        if not isinstance(task, Task):
            raise TypeError(f"of() gave a {type(task).__name__}")
    except Exception as error:  # the user's class may raise anything
        message = f"{kind!r} makes no task: {type(error).__name__}: {error}"
        raise ConfigError.at("task.kind", message) from None
    return OwnOutline(task, config.model.name, problems=tuple(unused(config)))


def _unused_by_network(config: RunConfig) -> Iterator[Problem]:
    """Keys that say what of a module is trained."""
    remedy = "a network of one's own says itself what it takes from clients: remove it"
    if config.adapter != AdapterConfig():
        yield Problem("adapter", "a network of one's own does not use this section: remove it")
    if config.train.what is not None:
        yield Problem("train.what", remedy)
    if config.train.trainer is not None:
        yield Problem("train.trainer", "it gets a torch.nn.Module with PEFT's adapters, and this network is none")
    if config.model.head_layers is not None:
        yield Problem("model.head_layers", remedy)
