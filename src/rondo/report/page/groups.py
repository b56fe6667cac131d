"""Runs that differ by their seed alone are one group, which a page names and draws as one line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from rondo.records.recorded import Recorded
from rondo.report.drawing import styles

_BESIDE = ("seed", "simulation.engine", "simulation.workers")
"""Keys that no group differs by: the seed, and where clients train, which changes no bit."""
_NAMED = 3
"""Keys that a group is named by, at most."""


@dataclass(frozen=True)
class Group:
    """Runs of one configuration, by seed. ``style``: the number of its colour and dash. ``keys``: the configuration, by
    key path."""

    label: str
    style: int
    runs: Sequence[Recorded]
    keys: Mapping[str, Any]

    @property
    def secret_turnout(self) -> bool:
        return any(run.secret_turnout for run in self.runs)

    @property
    def counted(self) -> Group:
        """The group as its traffic and failures may be shown: without rounds where they are a secret."""
        return replace(self, runs=[replace(run, rounds=[]) for run in self.runs]) if self.secret_turnout else self

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]


@dataclass(frozen=True)
class Difference:
    """A key whose values differ: the value of each group as text, None where the group has no such key."""

    key: str
    values: Sequence[str | None]

    @property
    def common(self) -> str | None:
        """The value of most groups; of several, the first one's."""
        return max(self.values, key=lambda value: (self.values.count(value), -self.values.index(value)))


def grouped(runs: Sequence[Recorded]) -> list[Group]:
    """The groups in the order of their first runs, each with another label."""
    members: dict[str, list[Recorded]] = {}
    for run in runs:
        members.setdefault(json.dumps([run.label, _keys(run)], sort_keys=True), []).append(run)
    several = [sorted(group, key=lambda run: (run.seed, run.name)) for group in members.values()]
    labels = _labels(several)
    numbers = styles(labels)
    return [Group(label, numbers[label], of, _keys(of[0])) for label, of in zip(labels, several, strict=True)]


def differences(groups: Sequence[Group]) -> list[Difference]:
    """The keys of the configuration in which groups differ."""
    keys = dict.fromkeys(key for group in groups for key in group.keys)
    rows = [Difference(key, [_value(group.keys, key) for group in groups]) for key in keys]
    return [row for row in rows if len(set(row.values)) > 1]


def shared(groups: Sequence[Group]) -> Iterator[tuple[str, str]]:
    """The keys in which all groups agree, with their values."""
    differing = {row.key for row in differences(groups)}
    for key in groups[0].keys if groups else ():
        if key not in differing and (value := _value(groups[0].keys, key)) is not None:
            yield key, value


def _keys(run: Recorded) -> dict[str, Any]:
    return {key: value for key, value in _flat(run.config).items() if key not in _BESIDE}


def _flat(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """The values of nested mappings by their key paths."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        place = f"{path}.{key}" if path else str(key)
        found |= _flat(value, place) if isinstance(value, Mapping) and value else {place: value}
    return found


def _value(keys: Mapping[str, Any], key: str) -> str | None:
    """A value as text. Of a path only the end is shown: the rest says how somebody's machine is laid out."""
    if keys.get(key) is None:
        return None
    value = keys[key]
    return _shown_path(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _shown_path(text: str) -> str:
    for path in (PurePosixPath(text), PureWindowsPath(text)):
        if path.is_absolute() and re.match(r"[/\\]|[A-Za-z]:[/\\]", text):
            return f"…/{path.name}"
    return text


def _labels(groups: Sequence[Sequence[Recorded]]) -> list[str]:
    """A name for each group: the comparison's, or the method and the keys in which it differs from others of the
    method. Where these do not tell groups apart, the folder's name follows."""
    names = [group[0].label or str(group[0].config["algorithm"]["name"]) for group in groups]
    keys = [_keys(group[0]) for group in groups]
    labels = []
    for name, of_group in zip(names, keys, strict=True):
        same = [k for n, k in zip(names, keys, strict=True) if n == name]
        differing = [key for key in of_group if len({json.dumps(k.get(key)) for k in same}) > 1][:_NAMED]
        words = [
            f"{key.removesuffix('.name').rpartition('.')[2]}={_value(of_group, key) or 'none'}" for key in differing
        ]
        labels.append(" ".join([name, *words]))
    for i, label in enumerate(list(labels)):
        if labels.count(label) > 1:
            labels[i] = f"{label} ({groups[i][0].name})"
    return [label if labels.count(label) == 1 else f"{label} #{i + 1}" for i, label in enumerate(labels)]
