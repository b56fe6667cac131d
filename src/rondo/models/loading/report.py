"""A checkpoint, or an adapter, compared with its model: missing tensors, tensors of another size, and unused ones."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from torch import nn

from rondo.config.task_kinds import Kind
from rondo.errors import ConfigError, Problem
from rondo.params import HEAD_PREFIX

_POOLER = "pooler"
"""Transformers' name for the only layer of a base model that other tasks are saved without."""


def new_tensors(kind: Kind, module: nn.Module, report: Mapping[str, Any]) -> set[str]:
    """Names of the head's tensors that the checkpoint does not have, or not in the head's size.

    ``report``: transformers' own (``output_loading_info``).

    Raises :class:`ConfigError` if another tensor is missing or has another size: it would be random.
    """
    sizes = {name: (saved, expected) for name, saved, expected in report["mismatched_keys"]}
    missing = set(report["missing_keys"]) - sizes.keys()
    base = f"{module.base_model_prefix}."

    def of_body(name: str) -> bool:
        return not kind.head or (name.startswith(base) and not name.startswith(f"{base}{_POOLER}."))

    problems = []
    if lost := set(filter(of_body, missing)):
        lacks = f"the checkpoint lacks {len(lost)} of the model's tensors, which would be random"
        parts = listed(parts_of(lost, module.state_dict().keys() - lost))
        problems.append(Problem("model.name", f"{lacks}: {parts}; name a complete one, or mend its config.json"))
    if wrong := sorted(filter(of_body, sizes)):
        saved, expected = (" x ".join(map(str, size)) for size in sizes[wrong[0]])
        others = f" ({len(wrong)} tensors differ)" if len(wrong) > 1 else ""
        message = f"{wrong[0]} is {saved} in the checkpoint and {expected} by its config.json{others}"
        problems.append(Problem("model.name", f"{message}: mend config.json, or name another model"))
    if problems:
        raise ConfigError(problems)
    return missing | sizes.keys()


def parts_of(names: Collection[str], others: Collection[str]) -> list[str]:
    """The largest modules, or else tensors, with some of ``names`` in them and none of ``others``."""
    taken = {path for other in others for path in _paths(other)}
    return sorted({next((p for p in _paths(name) if p not in taken), name) for name in names})


def _paths(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts) + 1)]


def listed(parts: list[str]) -> str:
    """The first eight of ``parts``, and how many more they are."""
    return ", ".join(parts[:8]) + (f" and {len(parts) - 8} more" if len(parts) > 8 else "")


def misfit(expected: Mapping[str, tuple[int, ...]], actual: Mapping[str, tuple[int, ...]]) -> str:
    """The sentence about an adapter that is another model's. ``expected``, ``actual``: the shapes of the model's and of
    the adapter's tensors, which differ, by Rondo's names."""
    differing = sorted(n for n in expected.keys() | actual.keys() if expected.get(n) != actual.get(n))
    name = differing[0]
    plain = name.removeprefix(HEAD_PREFIX)
    if name != plain and name not in expected:
        message = f"has the tensor {plain} whole beside its factors, as PEFT saves embeddings that were resized or "
        return message + "trained, and it is no part of this model's head: name an adapter of factors alone"
    which = plain if name == plain else f"{plain} of the head"
    message = f"is of another model: {which} is {_sized(actual.get(name))} in it and {_sized(expected.get(name))} in "
    return f"{message}this model" + (f", and so {len(differing) - 1} more tensors" if len(differing) > 1 else "")


def _sized(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else " x ".join(map(str, shape))
