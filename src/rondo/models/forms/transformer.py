"""A transformers model with adapters, as a run uses it and writes it."""

from __future__ import annotations

import importlib.metadata
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from rondo.config import task_kinds as tasks
from rondo.config.inputs import GIVEN
from rondo.config.schema import RunConfig, SimulationConfig
from rondo.models.forms.module import kernels_of, make_network, state_of
from rondo.models.forms.row_limits import RowLimits
from rondo.models.kernels.precision import apply, choose
from rondo.models.kernels.quiet import quiet
from rondo.models.loading import peft
from rondo.models.loading.pretrained import Pretrained, identity, load_pretrained, loading
from rondo.models.loading.report import listed
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.network import Base
from rondo.models.networks.whole_network import WholeNetwork
from rondo.models.shortcuts.choose import Shortened, shorten
from rondo.models.shortcuts.head_inputs import keep_head_inputs
from rondo.models.shortcuts.prefix import Prefix
from rondo.params import HEAD_PREFIX, Params
from rondo.tasks.task import Example, Task


@dataclass
class Transformer:
    """A :class:`rondo.models.forms.model.Model`."""

    name: str
    """The absolute path of its folder, or its name on a hub."""
    identity: Mapping[str, Any]
    network: AdaptedNetwork | WholeNetwork
    known: Any
    """The model's configuration, from transformers."""
    tokenizer: Any
    lora: Any
    """The adapters' configuration, from PEFT; None without adapters."""
    kernels: Mapping[str, Any]
    """The manifest's entry about precision and libraries."""
    simulation: SimulationConfig
    packing: bool
    """Whether rows may be laid end to end."""
    unused: list[str]
    """Parts of the checkpoint that the model has no place for."""
    quantizer: str | None
    """Package and version that rounded the weights."""
    shortened: Shortened = field(default_factory=Shortened)
    head_inputs: Mapping[str, Any] = field(default_factory=dict)
    """The manifest's entry about the inputs of a head that is trained alone."""
    limits: RowLimits = field(default_factory=lambda: RowLimits(0))

    @property
    def pad_token_id(self) -> int | None:
        """The padding token's id, where the model's own configuration (``known``) has none or another one."""
        used = getattr(self.network.module.config, "pad_token_id", None)
        return None if used == getattr(self.known, "pad_token_id", None) else used

    @property
    def form(self) -> Literal["adapter", "merged"]:
        """See :attr:`rondo.models.forms.model.Model.form`."""
        return "merged" if isinstance(self.network, WholeNetwork) else "adapter"

    def shorten(self, task: Task, examples: Sequence[Example]) -> Prefix | None:
        """See :meth:`rondo.models.forms.model.Model.shorten`. Where whole tensors are trained, the only shortcut is to
        keep the inputs of the head."""
        if isinstance(self.network, WholeNetwork):
            self.head_inputs = keep_head_inputs(self.network, task, examples, self.simulation)
            return None
        self.shortened = shorten(self.network, task, examples, self.simulation, packing=self.packing)
        return self.shortened.prefix

    def record(self) -> Mapping[str, Any]:
        """See :meth:`rondo.models.forms.model.Model.record`."""
        loading = {"unused_weights": self.unused, "quantizer": self.quantizer}
        return {**loading, "kernels": self.kernels, **self.shortened.record(), **self.head_inputs}

    def save(self, folder: Path, seen: Params, base: Base, labels: Sequence[str]) -> None:
        """Write a PEFT adapter, or a whole model, with the tokenizer and the label names beside it."""
        if isinstance(self.network, WholeNetwork):
            state = state_of(self.network, seen, base)
            with quiet():
                self.network.module.save_pretrained(str(folder), state_dict=state)  # type: ignore[operator]
            if self.tokenizer is not None:
                self.tokenizer.save_pretrained(str(folder))
            return
        peft.write_adapter(
            folder,
            self.network,
            self.lora,
            seen,
            base,
            model_name=None if self.name == GIVEN else self.name,
            tokenizer=self.tokenizer,
            labels=labels,
        )


def load_transformer(
    config: RunConfig, name: str, known: Any, tokenizer: Any, device: torch.device, loaded: Pretrained | None = None
) -> Transformer:
    """Load the model at ``name``, with adapters where PEFT places them. Raises :class:`rondo.errors.ConfigError`.

    ``loaded``: the model itself, where it is loaded already.
    """
    loaded = loaded or load_base(config, name, known, tokenizer, config.seed)
    module, head_names = loaded.module, loaded.head
    if loaded.unused:
        message = f"model.name: parts of the checkpoint are not used: {listed(loaded.unused)}"
        warnings.warn(f"{message}; right for another task's head, but not for layers of the body", stacklevel=2)
    whose = identity(module, tokenizer)
    task = tasks.TABLE[config.task.kind].peft
    network: AdaptedNetwork | WholeNetwork
    if config.whole_tensors is not None:
        lora = None
        network = make_network(config, module, head_names, task, device)
        network.move(device)
        kernels = kernels_of(network, torch.float32)
    else:
        planned = peft.plan(module, config.adapter, task, head_names, config.seed)
        lora = planned.lora
        lora.revision = config.model.revision  # PEFT's AutoPeft classes load the base by it
        chosen = choose(config.train.precision, device, quantized=config.model.quantization is not None)
        kernels = chosen.record()
        factors = {n: t for n, t in planned.params.items() if not n.startswith(HEAD_PREFIX)}
        network = AdaptedNetwork(module.to(device), planned.sites, head_names, factors)
        apply(module, chosen)
        for tensor in network.initial_head:
            if tensor in planned.params:
                network.initial_head[tensor] = planned.params[tensor].to(device)
    package = {None: None, "int8": "torchao", "nf4": "bitsandbytes"}[config.model.quantization]
    quantizer = None if package is None else f"{package} {importlib.metadata.version(package)}"
    return Transformer(
        os.path.abspath(name) if os.path.isdir(name) else name,
        whose,
        network,
        known,
        tokenizer,
        lora,
        kernels,
        config.simulation,
        config.train.packing,
        loaded.unused,
        quantizer,
    )


def load_base(config: RunConfig, name: str, known: Any, tokenizer: Any, seed: int) -> Pretrained:
    """Load the model without adapters. The head's tensors that the checkpoint lacks are drawn from ``seed``. Raises
    :class:`rondo.errors.ConfigError`."""
    model = config.model
    with loading(model.name, "its weights"):
        return load_pretrained(
            tasks.TABLE[config.task.kind],
            name,
            known,
            tokenizer,
            seed=seed,
            revision=model.revision,
            gguf_file=model.gguf,
            quantization=model.quantization,
        )
