"""The outline of a built-in network: a module without a hub, made at once, since it has no weights to load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from rondo.config import task_kinds as tasks
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, Problem
from rondo.models.forms.builtin.classical import WORDS, WordTokenizer, hashed, make, word_vectors
from rondo.models.forms.model import Outline
from rondo.models.forms.module import WholeModel, head_names, trained_names, whole_model
from rondo.models.loading import peft
from rondo.models.networks.adapted_layer import Site
from rondo.tasks.make import make as make_task
from rondo.tasks.task import Task


@dataclass(frozen=True)
class ClassicalOutline(Outline):
    """An :class:`rondo.models.forms.model.Outline`."""

    task: Task
    sites: Sequence[Site]
    problems: Sequence[Problem]
    labels: Sequence[str]

    def load(self, config: RunConfig, device: torch.device) -> WholeModel:
        kind = tasks.TABLE[config.task.kind]
        return whole_model(config, lambda: _made(config, self.labels), self.task, device, kind.peft)


def look(config: RunConfig, labels: Sequence[str]) -> ClassicalOutline:
    """Outline the built-in network that ``model.name`` names. Raises :class:`ConfigError`."""
    module = _made(config, labels)
    kind, problems = tasks.TABLE[config.task.kind], list(unused(config))
    sites: tuple[Site, ...] = ()
    head = head_names(config, module)
    try:
        if config.has_factors:
            sites = peft.plan(module, config.adapter, kind.peft, head, config.seed).sites
        trained_names(config, module, head, sites)
    except ConfigError as error:
        problems += error.problems
    task = make_task(config, tokenizer_of(config), labels)
    return ClassicalOutline(task, sites, problems, labels)


def tokenizer_of(config: RunConfig) -> object:
    """The tokenizer of a network for texts, which no checkpoint brings; None for other networks. Raises
    :class:`ConfigError`."""
    if tasks.TABLE[config.task.kind].inputs != "text":
        return None
    words = word_vectors(config)
    return WordTokenizer(partial(hashed, size=WORDS) if words is None else words.number)


def _made(config: RunConfig, labels: Sequence[str]) -> nn.Module:
    kind = config.task.kind
    if kind not in tasks.TABLE or not tasks.TABLE[kind].head or tasks.TABLE[kind].of_tokens:
        message = f"{config.model.name!r} classifies or predicts numbers, and task.kind is {kind!r}: name another"
        raise ConfigError.at("model.name", message)
    try:
        return make(config, max(1, len(labels)))
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError.at("model.name", f"{config.model.name!r} does not fit the data: {error}") from None


def unused(config: RunConfig) -> Iterator[Problem]:
    """Keys that say how a checkpoint is loaded."""
    for key in ("revision", "gguf_file", "quantization"):
        if getattr(config.model, key) is not None:
            yield Problem(f"model.{key}", "only a checkpoint has it, and this network has none: remove it")
    if config.has_factors and config.adapter.start_from is not None:
        yield Problem("adapter.start_from", "this network has no checkpoint that the adapter was made for: remove it")
