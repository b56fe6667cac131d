"""A transformers model before its weights are loaded: its tokenizer, its layers and what they allow."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rondo import own_code
from rondo.config import packages
from rondo.config import task_kinds as tasks
from rondo.config.hub import asked
from rondo.config.inputs import BUILTIN_NETWORKS, GIVEN, LINEAR
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError, Problem
from rondo.models.forms import own_network
from rondo.models.forms.builtin import linear_problem
from rondo.models.forms.builtin import outline as builtin_outline
from rondo.models.forms.generation import Generation, RowLimits, rotary_turn, row_limits
from rondo.models.forms.model import Check, Outline
from rondo.models.forms.module import trained_names
from rondo.models.forms.transformer import StockPredictor, Transformer, load_base, load_transformer
from rondo.models.loading import learned_classes, peft, sentence
from rondo.models.loading.checks import rounded_already
from rondo.models.loading.given import copied, copied_tokenizer
from rondo.models.loading.pretrained import (
    Pretrained,
    check_files,
    identity,
    load_config,
    load_structure,
    load_tokenizer,
    loading,
    locate,
)
from rondo.models.networks.adapted_layer import Site
from rondo.params import HEAD_PREFIX, Params
from rondo.process import no_warnings
from rondo.tasks.make import make as make_task
from rondo.tasks.task import Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def look(
    config: RunConfig,
    labels: Sequence[str],
    model: PreTrainedModel | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Outline:
    """Outline the model that ``config`` names. Raises :class:`ConfigError` if there is none or a package is missing.

    ``model``, ``tokenizer``: objects in its place; the tokenizer for text only.
    """
    if own_code.is_name(config.model.name):
        return own_network.look(config, labels)
    if config.model.name in BUILTIN_NETWORKS:
        return builtin_outline.look(config, labels)
    if config.model.name == LINEAR:
        return linear_problem.look(config)
    if config.task.kind not in tasks.TABLE:
        message = "a task of one's own needs a network of its own: name it as package.module:factory"
        raise ConfigError.at("model.name", message)
    if tasks.TABLE[config.task.kind].auto is None:
        message = f"transformers has no models for {config.task.kind}: name a network, package.module:factory"
        raise ConfigError.at("model.name", message)
    missing = list(_missing_packages(config))
    if missing:
        raise ConfigError(missing)
    if model is not None:
        return _outline(config, labels, _given(config, labels, model, tokenizer))
    return _outline(config, labels, _named(config, labels))


@dataclass(frozen=True)
class TransformerOutline(Outline):
    """An :class:`rondo.models.forms.model.Outline`."""

    task: Task
    sites: Sequence[Site]
    problems: Sequence[Problem]
    name: str
    """The model's folder, or its name on a hub."""
    known: Any
    """The model's configuration, from transformers."""
    tokenizer: Any
    limits: RowLimits
    loaded: Pretrained | None
    """The model with its weights, if a program gave it."""

    def load(self, config: RunConfig, device: torch.device) -> Transformer:
        with nullcontext() if self.loaded or Path(self.name).exists() else asked("model.name", self.name, "models"):
            return load_transformer(
                config,
                self.name,
                self.known,
                self.tokenizer,
                self.task.answer_end,
                self.limits,
                device,
                self.loaded,
            )

    def stock(self, config: RunConfig, folder: Path, check: Check) -> tuple[Any, Any]:
        base = load_base(config, self.name, self.known, self.tokenizer, config.seed)
        check(identity(base.module, self.tokenizer))
        adapted = (folder / "adapter_config.json").is_file()
        return peft.stock_model(base.module, folder) if adapted else base.module.eval(), self.tokenizer

    def predictor(
        self, config: RunConfig, folder: Path, device: torch.device, how: Generation, check: Check
    ) -> StockPredictor:
        """The model as stock libraries load it."""
        module, tokenizer = self.stock(config, folder, check)
        return StockPredictor(module.to(device), tokenizer, self.limits, how, self.task.answer_end)


@dataclass(frozen=True)
class _Found:
    """A model as it was found. ``module`` may have no weights."""

    name: str
    known: Any
    module: nn.Module
    head: Sequence[str]
    tokenizer: Any
    classes: Sequence[str]
    """Names of the classes that its head has learned, in the order of its outputs."""
    loaded: Pretrained | None = None


def _given(
    config: RunConfig, labels: Sequence[str], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
) -> _Found:
    used = [key for key in ("revision", "gguf_file", "quantization") if getattr(config.model, key) is not None]
    if used:
        raise ConfigError([Problem(f"model.{key}", "a model object does not use it: remove it") for key in used])
    copy = None if tokenizer is None else copied_tokenizer(tokenizer)
    loaded = copied(tasks.TABLE[config.task.kind], model, copy, labels)
    known = loaded.module.config
    classes = learned_classes.named(getattr(known, "id2label", None) or {})
    return _Found(model.name_or_path or GIVEN, known, loaded.module, loaded.head, copy, classes, loaded)


def _named(config: RunConfig, labels: Sequence[str]) -> _Found:
    model = config.model
    model_file = model.gguf or "config.json"
    name = locate(model)
    if Path(name).is_dir() and not Path(name, model_file).is_file():
        key = "model.name" if model.gguf_file is None else "model.gguf_file"
        raise ConfigError.at(key, f"no {model_file} in {model.name!r}: name what has the model")
    kind = tasks.TABLE[config.task.kind]
    with nullcontext() if Path(name).exists() else asked("model.name", name, "models"):
        return _opened(config, labels, name, kind)


def _opened(config: RunConfig, labels: Sequence[str], name: str, kind: tasks.Kind) -> _Found:
    model = config.model
    check_files(model, name)
    with loading(model.name, "it"):
        classes = learned_classes.of_checkpoint(name, model.revision) if model.gguf is None else ()
        several = config.task.several_labels
        known = load_config(kind, name, labels=labels, several=several, revision=model.revision, gguf_file=model.gguf)
        empty, head_names = load_structure(kind, known)
    tokenizer = None
    if kind.inputs == "text":
        with loading(model.name, "its tokenizer"):
            tokenizer = load_tokenizer(name, revision=model.revision, gguf_file=model.gguf)
    return _Found(name, known, empty, head_names, tokenizer, classes)


def _head_problems(config: RunConfig, labels: Sequence[str], opened: _Found, start: Params) -> Iterator[Problem]:
    """Classes that the head, the adapter's in ``start`` or the model's own, would go on for as others. Warns of a
    learned head of the model that is not used."""
    kind, folder = tasks.TABLE[config.task.kind], config.adapter.start_from
    if not kind.head or kind.outputs is not None:
        return
    chosen = config.task.named_labels is not None
    if folder is not None and any(name.startswith(HEAD_PREFIX) for name in start):
        learned: Sequence[str] = learned_classes.of_adapter(folder)
        whose = f"the adapter {folder!r}"
    else:
        learned, whose = opened.classes, "the model"
        if learned and len(learned) != len(labels):
            drawn = f"the head of its {len(learned)} classes is not used, as the rows have {len(labels)}"
            warnings.warn(f"model.name: {drawn}: a new one is drawn", stacklevel=2)
    yield from learned_classes.misplaced(labels, learned, whose, chosen=chosen)


def _outline(config: RunConfig, labels: Sequence[str], opened: _Found) -> TransformerOutline:
    kind, tokenizer = tasks.TABLE[config.task.kind], opened.tokenizer
    if tokenizer is None:
        limits, problems = RowLimits(0), list(_picture_problems(config, opened.known))
    else:
        _set_template(tokenizer, config)
        limits = row_limits(opened.module, tokenizer)
        problems = list(_text_problems(config, opened, limits))
    sites: tuple[Site, ...] = ()
    try:
        start: Params = {}
        with no_warnings():  # loading the model repeats them
            if config.has_factors:
                planned = peft.plan(opened.module, config.adapter, kind.peft, opened.head, config.seed)
                sites, start = planned.sites, planned.params
        trained_names(config, opened.module, opened.head, sites)
        problems += _head_problems(config, labels, opened, start)
    except ConfigError as error:
        problems += error.problems
    problems += _of_whole_training(config)
    if config.model.quantization == "int8" and any(site.magnitude for site in sites):
        message = "PEFT merges 8-bit layers without their magnitudes (use_dora): set it to 'nf4', or remove it"
        problems.append(Problem("model.quantization", message))
    problems += rounded_already(opened.known, config.model.quantization)
    if kind.mixes_rows:
        with loading(config.model.name, "its modules.json"):
            known = sentence.settled(config.task, opened.name, config.model.revision)
        config = config.model_copy(update={"task": known})
        problems += _of_sentences(opened)
    task = make_task(config, tokenizer, labels).for_model(opened.module)
    return TransformerOutline(task, sites, problems, opened.name, opened.known, tokenizer, limits, opened.loaded)


def _of_sentences(opened: _Found) -> Iterator[Problem]:
    known, read = opened.known, opened.module.main_input_name
    if read != "input_ids":
        yield Problem("model.name", f"{known.model_type} reads {read}, not texts: name another")
    if getattr(known, "is_encoder_decoder", False):
        message = f"{known.model_type} has a decoder, whose states are not those of the text: name an encoder"
        yield Problem("model.name", f"{message}, or a decoder alone")


def _of_whole_training(config: RunConfig) -> Iterator[Problem]:
    """Keys that a checkpoint does not go with."""
    if config.adapter.from_scratch:
        message = "it would set pre-trained weights to zero: remove it, or take a built-in network"
        yield Problem("adapter.from_scratch", message)
    if config.model.quantization is not None and config.whole_tensors is not None:
        message = f"weights that are trained whole cannot be {config.model.quantization}: remove it, or remove "
        yield Problem("model.quantization", message + "train.what")


def _text_problems(config: RunConfig, opened: _Found, limits: RowLimits) -> Iterator[Problem]:
    """Everything that a model does not allow of texts."""
    limit, evaluation, kind = limits.read, config.evaluation, tasks.TABLE[config.task.kind]
    if config.task.max_length > limit:
        message = f"{config.task.max_length}, but this model takes {limit} tokens: lower it to {limit}"
        yield Problem("task.max_length", message)
    turn = rotary_turn(opened.known)
    if turn is not None and config.task.max_length > turn:
        message = f"{config.task.max_length}, but with a row of more than {turn} tokens this model's rotary embedding "
        message += "changes for all rows of a call (longrope), which are several clients': lower it to "
        yield Problem("task.max_length", f"{message}{turn}")
    room = limit - config.task.max_length
    if limits.written is not None:
        yield from _decoder_problems(config, limits.written)
    elif evaluation.generate and kind.generates and 0 <= room < evaluation.max_new_tokens:
        message = f"{evaluation.max_new_tokens} after up to task.max_length = {config.task.max_length} tokens, and "
        yield Problem("evaluation.max_new_tokens", f"{message}this model takes {limit}: lower one of the two")
    embedding = None
    with suppress(NotImplementedError):  # CANINE has hashes of characters; Perceiver's is no layer
        embedding = getattr(opened.module.get_input_embeddings(), "num_embeddings", None)  # type: ignore[operator]
    tokens = len(opened.tokenizer)
    if embedding is not None and tokens > embedding:
        added = [name for name, number in opened.tokenizer.get_added_vocab().items() if number >= embedding]
        names = f" ({', '.join(map(repr, added[:3]))}{' ...' if len(added) > 3 else ''})" if added else ""
        message = f"its tokenizer has {tokens} tokens, {tokens - embedding} more than its embedding{names}: "
        if added:
            message += f"load the model, call resize_token_embeddings({tokens}) and save it, or leave them out of the "
            message += "tokenizer"
        else:
            message += "name the tokenizer's own model"
        yield Problem("model.name", message)
    if kind.head and not kind.of_tokens and getattr(opened.known, "summary_type", None) == "last":
        message = "it classifies by a row's last token (XLNet), and rows are padded behind it: name another"
        yield Problem("model.name", message)


def _decoder_problems(config: RunConfig, limit: int) -> Iterator[Problem]:
    """Everything that a decoder, which writes at most ``limit`` tokens, does not allow."""
    task, evaluation = config.task, config.evaluation
    longest = task.max_length if task.max_target_length is None else task.max_target_length
    if config.task.kind == "seq2seq-lm" and longest > limit:
        message = f"{longest}, but this model writes {limit} tokens: set it to {limit} or less"
        yield Problem("task.max_target_length", message)
    if evaluation.generate and evaluation.max_new_tokens > limit:
        message = f"{evaluation.max_new_tokens}, but this model writes {limit} tokens: lower it to {limit}"
        yield Problem("evaluation.max_new_tokens", message)


def _picture_problems(config: RunConfig, known: Any) -> Iterator[Problem]:
    """Everything that a model does not allow of pictures. ``known``: its configuration."""
    shape = config.task.image_shape
    if shape is None:
        return
    side, channels = getattr(known, "image_size", None), getattr(known, "num_channels", None)
    sides = shape[:2] if side is None else [side, side]  # convolutions take any size
    if isinstance(side, list | tuple):
        sides = list(side)
    if shape[:2] != sides:
        message = f"this model takes pictures of {sides[0]} x {sides[1]} pixels, and these are {shape[0]} x {shape[1]}"
        yield Problem("task.image_size", f"{message}: set it to {sides[0]}")
    if channels is not None and shape[2] != channels:
        message = f"this model takes {channels} channels, and the pictures have {shape[2]}: set it to "
        yield Problem("task.image_shape", f"{message}{[*sides, channels]}")


def _set_template(tokenizer: Any, config: RunConfig) -> None:
    """Give the tokenizer the chat template that the configuration names. Raises :class:`ConfigError`."""
    file = config.task.chat_template
    if file is not None:
        try:
            tokenizer.chat_template = Path(file).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError.at("task.chat_template", f"{file!r} cannot be read: {error}; mend it") from None


def _missing_packages(config: RunConfig) -> Iterator[Problem]:
    """One problem per package that the model's format needs and that is not installed."""
    model = config.model
    gguf = ("name" if model.is_gguf_path else "gguf_file", model.gguf, "gguf")
    rounds = "bitsandbytes" if model.quantization == "nf4" else "torchao"
    for key, value, package in (gguf, ("quantization", model.quantization, rounds)):
        if value is not None and find_spec(package) is None:
            yield Problem(f"model.{key}", f"{packages.missing(package)}, or remove it")
