"""A transformers model before its weights are loaded: its tokenizer, its layers and what they allow."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, Problem
from rondo.models import own_network, peft
from rondo.models.adapted_layer import Site
from rondo.models.model import Outline
from rondo.models.pretrained import load_config, load_structure, load_tokenizer, loading, locate
from rondo.models.transformer import Transformer, load_transformer
from rondo.tasks import table as tasks
from rondo.tasks.task import Task


def look(config: RunConfig, labels: Sequence[str]) -> Outline:
    """Outline the model that ``config`` names. Raises :class:`ConfigError` if there is none or a package is missing."""
    if own_network.is_factory(config.model.name):
        return own_network.look(config, labels)
    if config.task.kind not in tasks.TABLE:
        message = "a task of one's own needs a network of its own: name it as package.module:factory"
        raise ConfigError.at("model.name", message)
    missing = list(_missing_packages(config))
    if missing:
        raise ConfigError(missing)
    return _look(config, labels)


@dataclass(frozen=True)
class TransformerOutline:
    """An :class:`rondo.models.model.Outline`."""

    task: Task
    sites: Sequence[Site]
    problems: Sequence[Problem]
    name: str
    """The model's folder, or its name on a hub."""
    known: Any
    """The model's configuration, from transformers."""
    tokenizer: Any
    longest: int
    """The most tokens that the model takes."""

    def load(self, config: RunConfig, device: torch.device) -> Transformer:
        """See :meth:`rondo.models.model.Outline.load`."""
        return load_transformer(config, self.name, self.known, self.tokenizer, device)


def _look(config: RunConfig, labels: Sequence[str]) -> TransformerOutline:
    model, problems = config.model, []
    model_file = model.gguf or "config.json"
    name = locate(model)
    if Path(name).is_dir() and not Path(name, model_file).is_file():
        key = "model.name" if model.gguf_file is None else "model.gguf_file"
        raise ConfigError.at(key, f"no {model_file} in {model.name!r}: name what has the model")
    kind = tasks.TABLE[config.task.kind]
    with loading(model.name, "it"):
        known = load_config(kind, name, labels=labels, revision=model.revision, gguf_file=model.gguf)
        empty, head_names = load_structure(kind, known)
    with loading(model.name, "its tokenizer"):
        tokenizer = load_tokenizer(name, revision=model.revision, gguf_file=model.gguf)
    limit = _longest(empty, tokenizer)
    if config.task.max_length > limit:
        message = f"{config.task.max_length}, but this model takes {limit} tokens: lower it to {limit}"
        problems.append(Problem("task.max_length", message))
    embedded = int(empty.get_input_embeddings().num_embeddings)  # type: ignore[operator]
    if len(tokenizer) > embedded:
        message = f"its tokenizer has {len(tokenizer)} tokens and its embedding only {embedded}: is it another model's?"
        problems.append(Problem("model.name", message))
    if kind.head and getattr(known, "summary_type", None) == "last":
        message = "it classifies by a row's last token (XLNet), and rows are padded behind it: name another"
        problems.append(Problem("model.name", message))
    sites: tuple[Site, ...] = ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # loading the model repeats them
            sites = peft.plan(empty, config.adapter, kind.peft, head_names, config.seed).sites
    except ConfigError as error:
        problems += error.problems
    task = tasks.load(config.task.kind).of(config.task, tokenizer, labels)
    return TransformerOutline(task, sites, problems, name, known, tokenizer, limit)


def _missing_packages(config: RunConfig) -> Iterator[Problem]:
    """One problem per package that the model's format needs and that is not installed."""
    model = config.model
    gguf = ("name" if model.is_gguf_path else "gguf_file", model.gguf, "gguf", "gguf")
    for key, value, package, extra in (gguf, ("quantization", model.quantization, "torchao", "quant")):
        if value is not None and find_spec(package) is None:
            message = (
                f"needs the package {package}, which is not installed: pip install 'rondo-fl[{extra}]', or remove it"
            )
            yield Problem(f"model.{key}", message)


def _longest(module: Any, tokenizer: Any) -> int:
    """The most tokens that a row may have: as many as the tokenizer allows and the model has positions for."""
    config, limits = module.config, [int(tokenizer.model_max_length)]
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and positions > 0:  # XLNet says -1 for no limit
        limits.append(int(positions))
    for path, layer in module.named_modules():
        if path.endswith("position_embeddings") and getattr(layer, "padding_idx", None) is not None:
            # RoBERTa and its kin count positions from the padding token's id on. Only some tokenizers know it.
            limits.append(layer.num_embeddings - layer.padding_idx - 1)
    if getattr(config, "attention_type", None) == "block_sparse":
        # In longer rows BigBird's blocks depend on the length that the batch is padded to.
        limits.append((5 + 2 * config.num_random_blocks) * config.block_size)
    return min(limits)
