"""Keys that have another name by now: the old one is read, with a warning, until the version that it goes with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rondo.errors import Problem, visible


@dataclass(frozen=True)
class Renamed:
    """The fate of a key."""

    new: str
    """Its key path now."""
    goes: str
    """The first version that does not take the old one: two minor versions after the one that renamed it."""


RENAMED: dict[str, Renamed] = {}
"""By old key path. Nothing was renamed since the first release; docs/package.md, "What is stable", has the promise."""


def current(path: str) -> str:
    """The key path of today for ``path``. Warns of an old one."""
    fate = RENAMED.get(path)
    if fate is None:
        return path
    logging.getLogger("rondo").warning(
        "%s", visible(f"{path} is called {fate.new} now; the old name is read until version {fate.goes}")
    )
    return fate.new


def moved(tree: dict[str, Any]) -> list[Problem]:
    """Move values under old keys of a configuration, and of its tables of methods, to where they belong. Returns
    the faults of keys that are given by both names."""
    tables = tree.get("methods")
    methods = [t for t in tables.values() if isinstance(t, dict)] if isinstance(tables, Mapping) else []
    return [problem for part in (tree, *methods) for problem in _moved(part)]


def _moved(tree: dict[str, Any]) -> list[Problem]:
    problems = []
    for old in RENAMED:
        holder, key = _holder(tree, old)
        if holder is None or key not in holder:
            continue
        new = current(old)
        value = holder.pop(key)
        target, name = _holder(tree, new, make=True)
        if target is None:
            continue  # a value in place of a section, which is a fault of its own
        if name in target:
            problems.append(Problem(old, f"is called {new} now, which is given too: remove this one"))
        else:
            target[name] = value
    return problems


def _holder(tree: dict[str, Any], path: str, *, make: bool = False) -> tuple[dict[str, Any] | None, str]:
    """The section that a key path is in, None where there is none, and the name of the key in it."""
    *sections, key = path.split(".")
    node: Any = tree
    for section in sections:
        node = node.setdefault(section, {}) if make else node.get(section)
        if not isinstance(node, dict):
            return None, key
    return node, key
