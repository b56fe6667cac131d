"""Names and keys that a shell completes: ``rondo --install-completion`` (bash, zsh, fish, PowerShell).

A press of Tab starts a process, so each list imports what has it, and nothing imports torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rondo.config.reference import Key


def methods(incomplete: str) -> list[str]:
    """Methods."""
    from rondo.algorithms.table import TABLE

    return _starting(TABLE, incomplete)


def listed_methods(incomplete: str) -> list[str]:
    """Methods with commas between."""
    before, comma, last = incomplete.rpartition(",")
    taken = before.split(",")
    return [f"{before}{comma}{name}" for name in methods(last) if name not in taken]


def shown(incomplete: str) -> list[str]:
    """The names that ``rondo show`` takes."""
    return [*_starting(["config"], incomplete), *methods(incomplete)]


def keys(incomplete: str) -> list[str]:
    """Keys and sections."""
    from rondo.config.reference import sections

    named = [section.name for section in sections() if section.name]
    return _starting([*named, *_keys()], incomplete)


def settings(incomplete: str) -> list[str]:
    """KEY.PATH=VALUE. A key that is the only one is given twice, bare and with values, so that shells add no blank."""
    known = _keys()
    if "=" in incomplete:
        key, _, value = incomplete.partition("=")
        return [f"{key}={of}" for of in _starting(values(known[key]) if key in known else [], value)]
    found = _starting(known, incomplete)
    if len(found) == 1:
        return [f"{found[0]}=", *(f"{found[0]}={value}" for value in values(known[found[0]]) or ["VALUE"])]
    return [f"{key}=" for key in found]


def values(key: Key) -> list[str]:
    """The values of a key as ``--set`` takes them: its choices, or its default."""
    if key.path == "algorithm.name":
        return methods("")
    choices = [] if key.values.startswith("list of") else re.findall(r'"([^"]+)"', key.values)
    truths = ["true", "false"] if "true or false" in key.values else ["true"] if key.values.startswith("true,") else []
    if choices or truths:
        return [*truths, *choices]
    default = json.loads(key.default) if key.default else None
    return [] if default in (None, [], {}) else [str(default)]


def _keys() -> dict[str, Key]:
    from rondo.config.reference import sections

    return {key.path: key for section in sections() for key in section.keys}


def papers(incomplete: str) -> list[str]:
    """Settings of papers."""
    from rondo.config.papers.writer import names

    return _starting(["list", *names()], incomplete)


def entries(incomplete: str) -> list[str]:
    """Entries of ``rondo reproduce``."""
    from rondo.study.claims.entry import names

    return _starting(names(), incomplete)


def reproducible(incomplete: str) -> list[str]:
    """The names that ``rondo reproduce`` takes."""
    return [*_starting(["list", "all"], incomplete), *entries(incomplete)]


def one_of(*choices: str) -> Callable[[str], list[str]]:
    """A completion by a few words."""

    def complete(incomplete: str) -> list[str]:
        return _starting(choices, incomplete)

    return complete


def _starting(known: Iterable[str], incomplete: str) -> list[str]:
    return [word for word in known if word.startswith(incomplete)]
