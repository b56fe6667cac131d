"""A look at a model before its weights are loaded: its tokenizer, its layers and what they allow."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from rondo.algorithm import Algorithm
from rondo.config.schema import BUILTIN_MODEL, RunConfig
from rondo.engine.server.ranks import client_ranks
from rondo.errors import ConfigError, Problem
from rondo.models import peft
from rondo.models.pretrained import load_config, load_structure, load_tokenizer
from rondo.runs.collector import collector_paused
from rondo.tasks.table import _task
from rondo.tasks.task import Task


@dataclass(frozen=True)
class Structure:
    """Where the model is, what transformers knows of it, its tokenizer, the task in its tokens, and, where the clients
    that are to train have ranks of their own, these in the order of their ids."""

    model_name: str
    model_config: Any
    tokenizer: Any
    task: Task
    ranks: tuple[int, ...] | None


def look(config: RunConfig, labels: Sequence[str], algorithm: Algorithm[Any], clients: int = 0) -> Structure:
    """Look at the model that ``config`` names, on the meta device. ``clients``: how many are to train, if any. Raises
    :class:`ConfigError` with all that its layers and sizes do not allow."""
    missing = list(_missing_packages(config))
    if missing:
        raise ConfigError(missing)
    with collector_paused():  # transformers and PEFT are imported here first
        return _look(config, labels, algorithm, clients)


def _look(config: RunConfig, labels: Sequence[str], algorithm: Algorithm[Any], clients: int) -> Structure:
    model, problems, ranks = config.model, [], None
    wanted = model.gguf_file or "config.json"
    name = model_name(config)
    if Path(name).is_dir() and not Path(name, wanted).is_file():
        key = "model.name" if model.gguf_file is None else "model.gguf_file"
        raise ConfigError([Problem(key, f"no {wanted} in {model.name!r}: name what has the model")])
    with loading(config, "it"):
        known = load_config(config.task.kind, name, labels=labels, revision=model.revision, gguf_file=model.gguf_file)
        empty, head_names = load_structure(config.task.kind, known)
    with loading(config, "its tokenizer"):
        tokenizer = load_tokenizer(name, revision=model.revision, gguf_file=model.gguf_file)
    limit = _longest(empty, tokenizer)
    if config.task.max_length > limit:
        words = f"{config.task.max_length}, but this model takes {limit} tokens: lower it to {limit}"
        problems.append(Problem("task.max_length", words))
    embedded = int(empty.get_input_embeddings().num_embeddings)  # type: ignore[operator]
    if len(tokenizer) > embedded:
        words = f"its tokenizer has {len(tokenizer)} tokens and its embedding only {embedded}: is it another model's?"
        problems.append(Problem("model.name", words))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come again with the model itself
            sites = adapters(config, empty, head_names).sites
        if clients:
            ranks = client_ranks(config, algorithm, sites, clients)
    except ConfigError as error:
        problems += error.problems
    if problems:
        raise ConfigError(problems)
    return Structure(name, known, tokenizer, _task(config, tokenizer, labels), ranks)


def _missing_packages(config: RunConfig) -> Iterator[Problem]:
    """What the form of the model needs and is not installed."""
    for key, package, extra in (("gguf_file", "gguf", "gguf"), ("quantization", "torchao", "quant")):
        if getattr(config.model, key) is not None and find_spec(package) is None:
            words = (
                f"needs the package {package}, which is not installed: pip install 'rondo-fl[{extra}]', or remove it"
            )
            yield Problem(f"model.{key}", words)


def adapters(config: RunConfig, module: Any, head_names: Sequence[str]) -> peft.Plan:
    """Where adapters go in ``module`` and what they start as. Raises :class:`ConfigError`."""
    task_type: peft.TaskType = "SEQ_CLS" if config.task.kind == "sequence-classification" else "CAUSAL_LM"
    return peft.plan(module, config.adapter, task_type, head_names, config.seed)


def _longest(module: Any, tokenizer: Any) -> int:
    """The most tokens that the model's positions allow (the tokenizer knows of padding offsets, as RoBERTa's)."""
    positions = getattr(module.config, "max_position_embeddings", None)
    return min(int(tokenizer.model_max_length), int(positions) if positions else int(tokenizer.model_max_length))


def model_name(config: RunConfig) -> str:
    """Where the model is: a folder, or a name on a hub. Raises :class:`ConfigError`."""
    name = config.model.name
    if name != BUILTIN_MODEL:
        return name if not name.startswith("~") else str(Path(name).expanduser())
    from rondo.models.pretrained import minilm_path

    try:
        return minilm_path()
    except ImportError as error:
        raise ConfigError([Problem("model.name", str(error))]) from None


@contextmanager
def loading(config: RunConfig, part: str) -> Iterator[None]:
    """What libraries say of a model of which they cannot load a part, as a :class:`ConfigError`."""
    try:
        yield
    except (OSError, ValueError, ImportError, KeyError, SafetensorError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".:")
        words = f"{config.model.name!r}: {part} cannot be loaded: {reason}; name another, or save it there anew"
        raise ConfigError([Problem("model.name", words)]) from None
