"""The tables of methods, ``[methods.LABEL]``: the keys that they have, and configurations with their values. Imports no
torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rondo.errors import Problem

Tables = Mapping[str, Mapping[str, Any]]
"""Sections of keys by label; False for a section that the method goes without."""

_SECTIONS = ("algorithm", "adapter", "train", "server")
_KEYS = ("model.head", "model.head_layers", "model.buffers")
MAY_DIFFER = (*_SECTIONS, *_KEYS)
"""Sections and keys that one method may have for itself. The others are equal for all, which makes methods
comparable."""


def may_differ(path: str) -> bool:
    """Whether one method may have the key ``path`` for itself."""
    return any(path.startswith(f"{section}.") for section in _SECTIONS) or path in _KEYS


def tables(raw: Mapping[str, Any]) -> tuple[Tables, list[Problem]]:
    """The tables of methods in a configuration, and the faults of their form. Faulty keys are left out."""
    methods, problems = raw.get("methods", {}), list[Problem]()
    if not isinstance(methods, Mapping):
        return {}, [Problem("methods", "should be a table per method: [methods.fedit]")]
    sound: dict[str, dict[str, Any]] = {}
    for label, table in methods.items():
        sound[label] = {}
        if not isinstance(table, Mapping):
            problems.append(Problem(f"methods.{label}", f"should be a section: [methods.{label}]"))
            continue
        for section, value in table.items():
            if value is False and section in _SECTIONS[1:]:
                sound[label][section] = False
            elif isinstance(value, Mapping):
                sound[label][section] = {key: v for key, v in value.items() if may_differ(f"{section}.{key}")}
                problems += [
                    _misplaced(f"methods.{label}.{section}.{key}") for key in value.keys() - sound[label][section]
                ]
            else:
                problems.append(_misplaced(f"methods.{label}.{section}"))
    return sound, problems


def _misplaced(path: str) -> Problem:
    known = ", ".join(f"{name}.KEY" if name in _SECTIONS else name for name in MAY_DIFFER)
    return Problem(path, f"no key that one method may have for itself; there are {known}")


def method(tables: Tables, label: str) -> str:
    """The name of the algorithm that ``label`` stands for: its table's, else the label itself."""
    section = tables.get(label, {}).get("algorithm", {})
    return str(section.get("name", label))


def laid_over(raw: Mapping[str, Any], tables: Tables, label: str) -> dict[str, Any]:
    """The configuration ``raw`` of the method ``label``, with the values of its table in place of the others."""
    tree = {key: dict(value) if isinstance(value, Mapping) else value for key, value in raw.items() if key != "methods"}
    for section, values in {"algorithm": {}, **tables[label]}.items():
        if values is False:
            tree.pop(section, None)
        else:
            before = tree.get(section)
            tree[section] = {**(before if isinstance(before, dict) else {}), **values}
    tree["algorithm"]["name"] = method(tables, label)
    return tree


def placed(
    problems: Sequence[Problem], tables: Tables, label: str, *, not_its_own: Sequence[Problem]
) -> Iterator[Problem]:
    """``problems`` of the method ``label`` by their place in its table, but for those of ``not_its_own`` that lie in
    keys which the table does not have."""
    keys = [f"{section}.{key}" for section, values in tables[label].items() if values for key in values]
    for problem in problems:
        in_table = any(problem.path == key or problem.path.startswith((f"{key}.", f"{key}[")) for key in keys)
        place = f"methods.{label}." if in_table or problem not in not_its_own else ""
        yield Problem(f"{place}{problem.path}", problem.message)
