"""A transformers model with adapters, as a run uses it and writes it."""

from __future__ import annotations

import copy
import importlib.metadata
import json
import os
import shutil
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from rondo.config import task_kinds as tasks
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, first_of
from rondo.models.forms.generation import Generation, RowLimits, answers, end_ids, end_notes
from rondo.models.forms.model import Form, Model, Verification
from rondo.models.forms.module import kernels_of, make_network, state_of
from rondo.models.kernels.precision import apply, choose
from rondo.models.kernels.quiet import quiet
from rondo.models.loading import peft, sentence
from rondo.models.loading.lent import Lent, lend, merge_adapter
from rondo.models.loading.pretrained import (
    Pretrained,
    auto,
    identity,
    key_mapping,
    load_pretrained,
    loading,
    public_name,
)
from rondo.models.loading.result_factors import adapter_factors, truncated
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.call import output_of
from rondo.models.networks.network import Base, Network
from rondo.models.shortcuts.choose import Shortened, put_back, shorten
from rondo.models.shortcuts.head_inputs import keep_head_inputs
from rondo.models.shortcuts.prefix import Prefix
from rondo.params import HEAD_PREFIX, Params, magnitude, on_device
from rondo.tasks.language.output_layer import OutputLayer
from rondo.tasks.task import AnswerEnd, Batch, Example, Task


@dataclass
class Transformer(Model):
    """A model of transformers. Subclasses say how its network is trained and written."""

    name: str
    """The absolute path of its folder, or its name on a hub."""
    identity: Mapping[str, Any]
    network: Network
    known: Any
    """The model's configuration, from transformers."""
    tokenizer: Any
    answer_end: AnswerEnd
    """The tokens that end an answer."""
    kernels: Mapping[str, Any]
    """The manifest's entry about precision and libraries."""
    config: RunConfig
    limits: RowLimits
    unused: list[str]
    """Parts of the checkpoint that the model has no place for."""
    quantizer: str | None
    """Package and version that rounded the weights."""
    output: OutputLayer | None = field(default=None, init=False)
    """The output layer, where the network leaves it to the task."""

    @property
    def pad_token_id(self) -> int | None:
        used = getattr(self.network.module.config, "pad_token_id", None)
        return None if used == getattr(self.known, "pad_token_id", None) else used

    def record(self) -> Mapping[str, Any]:
        return {"unused_weights": self.unused, "quantizer": self.quantizer, "kernels": self.kernels}

    def generated(self, seen: Params, base: Base, prompts: Sequence[Sequence[int]], how: Generation) -> list[list[int]]:
        longest = max(map(len, prompts), default=0)
        if (fault := self.limits.fault(longest, how.max_new_tokens, f"a prompt of {longest} tokens")) is not None:
            raise ConfigError.at(how.option, fault)
        with put_back(self.network, self.output), self.network.lent(seen, base) as module:
            return answers(module, self.tokenizer, prompts, how, self.answer_end)

    def read(self, folder: Path) -> tuple[Params, Base]:
        """The result is the start of the loaded network."""
        return self.network.initial, {}

    @property
    def notes(self) -> Sequence[str]:
        known = getattr(getattr(self.network.module, "generation_config", None), "eos_token_id", None)
        written = self.form == "merged"  # in the settings that :meth:`save` writes
        return [*self._weight_notes(), *end_notes(self.tokenizer, known, self.answer_end, written=written)]

    def _weight_notes(self) -> Sequence[str]:
        renamed = key_mapping(tasks.TABLE[self.config.task.kind], self.known)
        if self.form == "adapter" and renamed is not None:
            return (
                f"Give the base model's `from_pretrained` also `key_mapping={renamed}`, or its weights are random.",
            )
        stored = getattr(self.known, "dtype", None)
        if self.dtype is not None:
            name = str(self.dtype).removeprefix("torch.")
            return (f"The weights are rounded to {name}, and with them the changes of training.",)
        if self.form != "merged" or stored not in (torch.bfloat16, torch.float16):
            return ()
        name = str(stored).removeprefix("torch.")
        message = f"The weights are in float32: the base model's own {name} would round the changes of training away."
        return (f"{message} Load them with dtype={stored} for its size.",)

    def _stock_whole(self, folder: Path) -> torch.nn.Module:
        """The whole model in ``folder``, loaded by transformers alone."""
        with quiet():
            loaded: torch.nn.Module = auto(tasks.TABLE[self.config.task.kind]).from_pretrained(
                str(folder), trust_remote_code=False
            )
        return loaded.eval()

    def _save_whole(self, folder: Path, module: Any, state: Params | None = None) -> None:
        """Write ``module``, with the tensors ``state`` in place of its own, and the tokenizer."""
        if self.dtype is not None:
            whole = module.state_dict() if state is None else state
            state = {name: t.to(self.dtype) if t.is_floating_point() else t for name, t in whole.items()}
        with quiet():
            module.save_pretrained(str(folder), **({} if state is None else {"state_dict": state}))
        if self.dtype is not None:  # save_pretrained writes the type of the module, which trained in another
            file = folder / "config.json"
            content = json.loads(file.read_text(encoding="utf-8"))
            content["dtype"] = str(self.dtype).removeprefix("torch.")
            file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        settings = folder / "generation_config.json"
        if self.answer_end.tokens and settings.is_file():  # or stock generation runs past the end that was learned
            known = json.loads(settings.read_text(encoding="utf-8"))
            known["eos_token_id"] = end_ids(known.get("eos_token_id"), self.answer_end)
            settings.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        if self.tokenizer is not None:
            self.tokenizer.save_pretrained(str(folder))
        self._write_modules(folder)

    def _write_modules(self, folder: Path) -> None:
        """Write what sentence-transformers needs, if this is a model for it."""
        if tasks.TABLE[self.config.task.kind].mixes_rows:
            sentence.write(folder, self.config.task, self.known.hidden_size)


@dataclass
class AdaptedTransformer(Transformer):
    """A model whose factors, and head, are a PEFT adapter."""

    network: AdaptedNetwork
    lora: Any = None
    """The adapter's configuration, from PEFT."""
    shortened: Shortened = field(default_factory=Shortened)
    stock: Any = None
    """The model without adapters and hooks, with the same weights, for a trainer of the user's own."""

    form: ClassVar[Form] = "adapter"

    def shorten(self, task: Task, examples: Sequence[Example]) -> tuple[Task, Prefix | None]:
        """None for a trainer of the user's own, whose model is whole."""
        if self.stock is not None:
            return task, None
        simulation, packing = self.config.simulation, self.config.train.packing
        self.shortened = shorten(self.network, task, examples, simulation, packing=packing)
        self.output = self.shortened.output
        return task if self.output is None else task.with_output(self.output), self.shortened.prefix

    def record(self) -> Mapping[str, Any]:
        return {**super().record(), **self.shortened.record()}

    def save(self, folder: Path, seen: Params, base: Base, labels: Sequence[str]) -> None:
        """Write a PEFT adapter, with the tokenizer and the label names beside it."""
        peft.write_adapter(
            folder,
            self.network,
            self.lora,
            seen,
            base,
            model_name=self.base_name or public_name(self.name),
            tokenizer=self.tokenizer,
            labels=labels,
        )
        self._write_modules(folder)

    def truncated(self, seen: Params, base: Base, rank: int) -> tuple[Params, float]:
        if any(map(magnitude, seen)):
            message = "with magnitudes (use_dora) the nearest product is not the nearest model: leave it out"
            raise ConfigError.at("--rank", message)
        return truncated(tuple(self.network.sites.values()), seen, base, rank)

    def lend(self, seen: Params, base: Base, train: Collection[str]) -> Lent:
        sites = tuple(self.network.sites.values())
        return lend(self.stock, self.lora, sites, self.tokenizer, seen, base, train)

    def rank(self, seen: Params, base: Base) -> int:
        factors = adapter_factors(tuple(self.network.sites.values()), seen, base)
        return max(a.shape[0] for a, _, _ in factors.values())

    def merged(self) -> MergedTransformer:
        parts = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
        return MergedTransformer(**{**parts, "identity": {}})

    def verified(self, folder: Path, seen: Params, base: Base, task: Task, rows: Callable[[], Batch]) -> Verification:
        return self._compared(self._stock(folder), seen, base, *task.trial_batch())

    def _stock(self, folder: Path) -> torch.nn.Module:
        return peft.stock_model(self._stock_base(), folder)

    def _stock_base(self) -> torch.nn.Module:
        """The base model alone, drawn with another seed, so that an unsaved head would show."""
        return load_base(self.config, self.name, self.known, self.tokenizer, self.config.seed + 1).module


@dataclass
class MergedTransformer(AdaptedTransformer):
    """An adapted model whose result is the whole model, with the adapter folded in by PEFT. It needs no base, so it has
    no identity."""

    form: ClassVar[Form] = "merged"

    def save(self, folder: Path, seen: Params, base: Base, labels: Sequence[str]) -> None:
        """Write the whole model, with the tokenizer beside it."""
        adapter = folder / "adapter"
        super().save(adapter, seen, base, labels)
        module = merge_adapter(self._stock_base(), adapter)
        shutil.rmtree(adapter)
        self._save_whole(folder, module)

    def _stock(self, folder: Path) -> torch.nn.Module:
        return self._stock_whole(folder)


@dataclass
class WholeTransformer(Transformer):
    """A model of which whole tensors are trained."""

    head_inputs: Mapping[str, Any] = field(default_factory=dict)
    """The manifest's entry about the inputs of a head that is trained alone."""

    form: ClassVar[Form] = "merged"

    def shorten(self, task: Task, examples: Sequence[Example]) -> tuple[Task, None]:
        """The only shortcut is to keep the inputs of the head."""
        if self.network.head_alone:
            self.head_inputs = keep_head_inputs(self.network, task, examples, self.config.simulation)
        return task, None

    def record(self) -> Mapping[str, Any]:
        return {**super().record(), **Shortened().record(), **self.head_inputs}

    def save(self, folder: Path, seen: Params, base: Base, labels: Sequence[str]) -> None:
        """Write the whole model, with the tokenizer beside it."""
        self._save_whole(folder, self.network.module, state_of(self.network, seen, base))

    def verified(self, folder: Path, seen: Params, base: Base, task: Task, rows: Callable[[], Batch]) -> Verification:
        batch = rows()
        return self._compared(self._stock_whole(folder).to(task.precision), seen, base, batch)


@dataclass(frozen=True)
class StockPredictor:
    """A :class:`rondo.tasks.task.Predictor`: a model as stock libraries load it."""

    module: Any
    tokenizer: Any
    limits: RowLimits
    how: Generation
    answer_end: AnswerEnd

    @property
    def batch_size(self) -> int:
        return self.how.batch_size

    @torch.no_grad()
    def output(self, inputs: Batch) -> Tensor:
        return output_of(self.module, on_device(inputs, self.module.device))

    def generated(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        for number, ids in enumerate(prompts):
            prompt = f"the {len(ids)} tokens of {self.how.place(number)}"
            if (fault := self.limits.fault(len(ids), self.how.max_new_tokens, prompt)) is not None:
                raise ConfigError.at(self.how.option, fault)
        return answers(self.module, self.tokenizer, prompts, self.how, self.answer_end)


def load_transformer(
    config: RunConfig,
    name: str,
    known: Any,
    tokenizer: Any,
    answer_end: AnswerEnd,
    limits: RowLimits,
    device: torch.device,
    loaded: Pretrained | None = None,
) -> Transformer:
    """Load the model at ``name``, with adapters where PEFT places them. Raises :class:`rondo.errors.ConfigError`.

    ``loaded``: the model itself, where it is loaded already.
    """
    loaded = loaded or load_base(config, name, known, tokenizer, config.seed)
    if loaded.unused:
        message = f"model.name: parts of the checkpoint are not used: {first_of(loaded.unused, 8)}"
        warnings.warn(f"{message}; right for another task's head, but not for layers of the body", stacklevel=2)
    package = {None: None, "int8": "torchao", "nf4": "bitsandbytes"}[config.model.quantization]
    parts: dict[str, Any] = {
        "name": os.path.abspath(name) if os.path.isdir(name) else name,
        "identity": identity(loaded.module, tokenizer),
        "known": known,
        "tokenizer": tokenizer,
        "answer_end": answer_end,
        "config": config,
        "limits": limits,
        "unused": loaded.unused,
        "quantizer": None if package is None else f"{package} {importlib.metadata.version(package)}",
    }
    task = tasks.TABLE[config.task.kind].peft
    if config.whole_tensors is not None:
        whole = make_network(config, loaded.module, loaded.head, task, device)
        whole.move(device)
        return WholeTransformer(network=whole, kernels=kernels_of(whole, torch.float32), **parts)
    planned = peft.plan(loaded.module, config.adapter, task, loaded.head, config.seed)
    planned.lora.revision = config.model.revision  # PEFT's AutoPeft classes load the base by it
    own, stock = config.train.trainer is not None, None
    if own:
        loaded.module.to(device)
        stock = copy.deepcopy(loaded.module, {id(p): p for p in loaded.module.parameters()})
    precision = "exact" if own else config.train.precision
    chosen = choose(precision, device, quantized=config.model.quantization is not None)
    network = _adapted(loaded, planned, device)
    apply(loaded.module, chosen)
    return AdaptedTransformer(network=network, kernels=chosen.record(), lora=planned.lora, stock=stock, **parts)


def _adapted(loaded: Pretrained, planned: peft.AdapterPlan, device: torch.device) -> AdaptedNetwork:
    factors = {n: t for n, t in planned.params.items() if not n.startswith(HEAD_PREFIX)}
    loaded.module.to(device)
    network = AdaptedNetwork(loaded.module, planned.sites, loaded.head, factors)
    network.initial_head |= {n: planned.params[n].to(device) for n in network.initial_head if n in planned.params}
    return network


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
