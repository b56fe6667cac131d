"""Turns pydantic's errors into problems in Rondo's words."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from rondo.config.rules.other_words import other_value, other_word, value_not_taken
from rondo.config.rules.peft_keys import not_taken, start_not_taken
from rondo.config.schema import FileConfig
from rondo.errors import Problem


def merged(problems: Iterator[Problem]) -> list[Problem]:
    """One problem per key. A value that fits none of several types is reported once, with all of them. A fault within a
    value stands alone: that the whole is of no other type either is told of no list or table with such a fault."""
    by_path: dict[str, Problem] = {}
    for problem in problems:
        earlier = by_path.get(problem.path)
        if earlier is not None:
            alternatives = earlier.message.partition(", got ")[0]
            wanted, got, rest = problem.message.removeprefix("should be ").partition(", got ")
            problem = Problem(problem.path, f"{alternatives} or {wanted}{got}{rest}")
        by_path[problem.path] = problem
    return [
        p for path, p in by_path.items() if not any(other.startswith((f"{path}.", f"{path}[")) for other in by_path)
    ]


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
    reason = start_not_taken(node) if path == "adapter.init_lora_weights" else value_not_taken(path, node)
    if reason:
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
    if (reason := other_word(".".join(loc))) is not None:
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
