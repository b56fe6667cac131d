"""Turns pydantic's errors into problems in Rondo's words."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from rondo.config.rules.peft_keys import not_taken, start_not_taken
from rondo.config.schema import FileConfig
from rondo.errors import Problem


def merged(problems: Iterator[Problem]) -> list[Problem]:
    """One problem per key. A value that fits none of several types is reported once, with all of them."""
    by_path: dict[str, Problem] = {}
    for problem in problems:
        earlier = by_path.get(problem.path)
        if earlier is not None:
            alternatives = earlier.message.partition(", got ")[0]
            wanted, got, rest = problem.message.removeprefix("should be ").partition(", got ")
            problem = Problem(problem.path, f"{alternatives} or {wanted}{got}{rest}")
        by_path[problem.path] = problem
    return list(by_path.values())


def explain(error: Any, raw: Mapping[str, Any], schema: type[BaseModel] = FileConfig) -> Problem:
    """A pydantic error about ``raw``, which should fit ``schema``, in Rondo's words: key path, fault and fix."""
    # Branches of a union add their own names to the location; keep what exists in the input.
    loc: list[str] = []
    node: Any = raw
    for part in error["loc"]:
        if isinstance(node, Mapping) and part in node:
            loc.append(str(part))
            node = node[part]
        elif isinstance(node, list) and isinstance(part, int):
            loc[-1:] = [f"{loc[-1]}[{part}]"] if loc else [f"[{part}]"]
            node = node[part] if part < len(node) else None
    path = ".".join(loc) or ".".join(str(p) for p in error["loc"])
    if error["type"] == "extra_forbidden":
        return Problem(path, unknown_key(loc, schema))
    wanted = (
        error["msg"]
        .replace("Input should be ", "should be ")
        .replace("List should have", "a list of")
        .replace(" after validation, not", ", not")
        .replace("a valid ", "a ")
        .replace("a integer", "an integer")
    )
    if isinstance(node, Mapping) and error["type"] not in ("model_type", "dict_type"):
        return Problem(path, wanted)
    hint = ""
    if path == "adapter.init_lora_weights" and (reason := start_not_taken(node)):
        hint = f"; {reason}"
    elif error["type"] == "literal_error" and isinstance(node, str):
        options = error["ctx"]["expected"].replace(" or ", ", ").replace("'", "").split(", ")
        other = other_value(path, node)
        near = [other] if other else difflib.get_close_matches(node, options, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
    elif error["type"] == "model_type":
        wanted = f"should be a section: [{path}]"
    elif isinstance(node, str) and error["type"] in _QUOTED and _is_toml(node):
        hint = "; write it without quotes"
    one_type = len(error["loc"]) == len(path.split("."))  # branches of a union, which may take a list, stand in loc
    return Problem(path, f"{wanted}, got {node!r}{(one_type and several(path, node)) or hint}")


def several(path: str, value: Any) -> str:
    """A hint for several values where the key ``path`` takes one: a list, or a text with commas between numbers or
    words."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list) or len(parts) < 2 or any(not str(part).strip() for part in parts):
        return ""
    values = ",".join(str(part).strip() for part in parts)
    return f"; for a run with each of them: rondo compare ... --vary {path}={values}"


_QUOTED = ("int_type", "float_type", "bool_type")


def _is_toml(text: str) -> bool:
    """Whether ``text`` is a number or a boolean, as TOML or a habit from YAML writes them."""
    if text.lower() in ("true", "false", "yes", "no", "on", "off"):
        return True
    try:
        return isinstance(tomllib.loads(f"x = {text}")["x"], (int, float))
    except tomllib.TOMLDecodeError:
        return False


def unknown(loc: list[str]) -> Problem | None:
    """The problem of a key path that the schema does not have; None if it has it. Sections with keys of a user's own
    have any."""
    section: Any = FileConfig
    for depth, part in enumerate(loc, 1):
        if not (isinstance(section, type) and issubclass(section, BaseModel)):
            break
        if part not in section.model_fields:
            own_keys = section.model_config.get("extra") == "allow"
            return None if own_keys else Problem(".".join(loc[:depth]), unknown_key(loc[:depth], FileConfig))
        section = section.model_fields[part].annotation
    return None


def unknown_key(loc: list[str], schema: type[BaseModel]) -> str:
    """The message for a key that ``schema`` does not have: PEFT's own, else another trainer's word, else a near
    match in its section, else the section that has it, else the keys known there."""
    if loc[:-1] == ["adapter"] and (reason := not_taken(loc[-1])):
        return reason
    if (reason := other_word(loc[-1])) is not None:
        return reason
    section: Any = schema
    for part in loc[:-1]:
        section = section.model_fields[part].annotation
    near = difflib.get_close_matches(loc[-1], section.model_fields, n=1)
    if near:
        return f"unknown key; did you mean {near[0]!r}?"
    sections = [
        name
        for name, f in schema.model_fields.items()
        if isinstance(f.annotation, type) and issubclass(f.annotation, BaseModel)
        if loc[-1] in f.annotation.model_fields
    ]
    if sections:
        return f"unknown key here; did you mean {sections[0]}.{loc[-1]}?"
    return f"unknown key; known here: {', '.join(section.model_fields)}"


# Words of other trainers (transformers, TRL, axolotl, bitsandbytes).

_KEYS = {
    "learning_rate": "train.lr",
    "per_device_train_batch_size": "train.batch_size",
    "loraplus_lr_ratio": "train.lr_ratio",
    "train_batch_size": "train.batch_size",
    "micro_batch_size": "train.micro_batch",
    "per_device_eval_batch_size": "evaluation.batch_size",
    "eval_batch_size": "evaluation.batch_size",
    "gradient_accumulation_steps": "train.micro_batch, the rows in memory at a time, where train.batch_size is whole",
    "num_train_epochs": "train.local_epochs in a round, and rounds",
    "num_epochs": "train.local_epochs in a round, and rounds",
    "max_steps": "train.local_steps in a round, and rounds",
    "optim": "train.optimizer",
    "lr_scheduler_type": "train.schedule",
    "lr_scheduler": "train.schedule",
    "warmup_steps": "train.warmup_rounds, in rounds",
    "warmup_ratio": "train.warmup_rounds, in rounds",
    "gradient_checkpointing": "train.checkpointing",
    "group_by_length": "train.length_grouping",
    "sample_packing": "train.packing",
    "max_seq_length": "task.max_length",
    "max_seq_len": "task.max_length",
    "sequence_len": "task.max_length",
    "model_name_or_path": "model.name",
    "base_model": "model.name",
    "lora_r": "adapter.r",
    "lora_rank": "adapter.r",
    "lora_target_modules": "adapter.target_modules",
    **dict.fromkeys(("gptq", "awq", "quantization_config"), 'model.quantization = "nf4" or "int8", of plain weights'),
    "load_in_4bit": 'model.quantization = "nf4"',
    "load_in_8bit": 'model.quantization = "int8"',
    "int4": 'model.quantization = "nf4"',
    "int8": 'model.quantization = "int8"',
    "eval_steps": "evaluation.every, in rounds",
    "eval_strategy": "evaluation.every, in rounds",
    "early_stopping_patience": "evaluation.patience",
    "fp16": 'train.precision = "fast" or "exact"',
    "bf16": 'train.precision = "fast" or "exact"',
}
"""Keys to write in place of a word."""

_NONE = {
    "save_steps": "every round is committed to the disk",
    "save_strategy": "every round is committed to the disk",
    "report_to": "a run writes its record to its own folder, and an observer is told of every round",
    "logging_steps": "every round is recorded",
    "output_dir": "the folder of a run is named by --run-dir, or by run(run_dir=...)",
    "resume_from_checkpoint": "a stopped run goes on by rondo resume RUN_DIR",
    "loraplus_lr_embedding": "embeddings have no factors",
    **dict.fromkeys(
        ("async", "asynchronous", "async_aggregation", "staleness", "max_staleness", "buffer_size"),
        "a round combines the uploads of one model, so that its result does not depend on the order of their arrival",
    ),
}
"""The reason why there is no key for a word."""

_VALUES = {"int4": "nf4", "4bit": "nf4", "8bit": "int8"}
"""Values of ``model.quantization`` in other words."""

WORDS = frozenset({*_KEYS, *_NONE})


def other_word(word: str) -> str | None:
    """The message about a key of another trainer's; None for any other key."""
    if word in _KEYS:
        return f"unknown key; another trainer's word: here it is {_KEYS[word]}"
    return f"unknown key; Rondo has none, because {_NONE[word]}: remove it" if word in _NONE else None


def other_value(path: str, value: str) -> str | None:
    """Rondo's word for ``value`` of the key ``path``; None if ``value`` is no word of another trainer's there."""
    return _VALUES.get(value) if path == "model.quantization" else None
