"""Files of a federation, read strictly. A fault is one line: the file, the place, what is wrong and the remedy."""

from __future__ import annotations

import json
import shlex
import stat
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rondo.errors import ConfigError

_LARGEST = 2**24
"""Bytes of the largest file that is read: a roster has some 400 per site."""


def content(path: Path) -> bytes:
    """The bytes of a file. Raises :class:`ConfigError`."""
    try:
        if path.is_dir():
            raise ConfigError.at(str(path), "this is a folder; put the file of this name in its place")
        if path.exists() and not path.is_file():
            raise ConfigError.at(str(path), "a pipe or a device, not a file; put the file of this name in its place")
        if (size := path.stat().st_size) > _LARGEST:
            raise ConfigError.at(str(path), f"{size >> 20} MiB, too large; put the right file in its place")
        return path.read_bytes()
    except FileNotFoundError:
        message = "no such file; name the folder of keys that has it (rondo federate keys make writes them)"
        raise ConfigError.at(str(path), message) from None
    except OSError as error:
        raise ConfigError.at(str(path), f"cannot be read: {error.strerror}; mend its owner or mode") from None


def private(path: Path) -> bytes:
    """The bytes of a private key's file. Raises :class:`ConfigError`, too if others than its owner may read it."""
    key = content(path)
    if sys.platform != "win32" and stat.S_IMODE(path.stat().st_mode) & 0o077:
        remedy = f"chmod 600 {shlex.quote(str(path))}"
        raise ConfigError.at(str(path), f"a private key that others than its owner can read: {remedy}")
    return key


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises :class:`ConfigError`, too if a key is there twice."""
    text = content(path)
    try:
        tree = json.loads(text.decode("utf-8-sig"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ConfigError.at(str(path), f"not JSON: {error}; mend it there") from None
    if not isinstance(tree, dict):
        raise ConfigError.at(str(path), "not a JSON object: it must start with { and end with }")
    return tree


def checked(tree: Any, place: str, required: Mapping[str, type], optional: Mapping[str, type]) -> dict[str, Any]:
    """``tree``, an object that has every required key, perhaps optional ones and no other, each of its type. An
    optional key may be null. Raises :class:`ConfigError` at ``place``."""
    if not isinstance(tree, dict):
        raise ConfigError.at(place, f"should be an object {{...}}, got {_short(tree)}")
    known = {**required, **optional}
    for key, value in tree.items():
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise ConfigError.at(place, f"unknown key {key!r}; {hint}")
        if type(value) is not known[key] and not (key in optional and value is None):
            raise ConfigError.at(f"{place}.{key}", f"should be {_WORDS[known[key]]}, got {_short(value)}")
    for key in required:
        if key not in tree:
            raise ConfigError.at(place, f"{key!r} is missing; add {_WORDS[required[key]]}")
    return tree


def texts(values: Sequence[Any], place: str) -> tuple[str, ...]:
    """The entries of a list, each a text that can be printed. Raises :class:`ConfigError` at ``place``."""
    for i, value in enumerate(values):
        if not isinstance(value, str) or not value or not value.isprintable():
            message = f"should be a text in quotes without control characters, got {_short(value)}"
            raise ConfigError.at(f"{place}.{i}", message)
    if not values:
        raise ConfigError.at(place, "is empty; name at least one")
    return tuple(values)


_WORDS = {str: "a text in quotes", list: "a list [...]", bool: "true or false"}


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:40]}..."


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(k for k in keys if keys.count(k) > 1)!r} is there twice")
    return tree


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
