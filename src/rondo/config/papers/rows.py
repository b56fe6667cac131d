"""Reads the papers' rows, ``NAME.toml`` beside this file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Keys = Mapping[str, Any]
"""Values by their place in a configuration, such as ``train.lr``."""


@dataclass(frozen=True)
class Setting:
    """One row of a paper."""

    source: tuple[str, ...]
    """The paper, then the row and its tables, then remarks."""
    keys: Keys
    """The values that the paper states, those that its data set and model need, and the chosen ones."""
    methods: Mapping[str, Keys]
    """The row's methods by label, each with its own values; False in place of a section that it goes without."""
    chosen: Mapping[str, str]
    """The keys that the paper does not state, with the reason or a remark for each value."""
    deviations: Mapping[str, str]
    """The keys whose values are not the paper's, with what the paper has and why it is not so here."""
    official: Keys
    """The values of the paper's official code, where they are others than the paper's; None for a key that it lacks."""
    official_remarks: tuple[str, ...]
    """Further differences of the official code, which no key has."""

    @property
    def all_keys(self) -> Keys:
        """``keys``, and those of the methods' tables by their place, ``methods.LABEL.SECTION.KEY``."""
        return {
            **self.keys,
            **{f"methods.{label}.{k}": v for label, own in self.methods.items() for k, v in own.items()},
        }


_BESIDE_KEYS = ("like", "row", "remarks", "methods", "chosen", "deviations", "official", "official-remarks")


def read(content: Mapping[str, Any], data_sets: Mapping[str, Any]) -> dict[str, Setting]:
    """The settings of a paper's file, by the names of its rows.

    A table of the file is a part of a configuration, and may have more entries: ``like``, names of tables that it is
    like, other rows among them; ``row``, its place in the paper; ``remarks``; ``methods``, the tables of methods by
    label, False for a method that another table has and this one has not; and ``chosen``, ``deviations``, ``official``
    and ``official-remarks`` as in :class:`Setting`. Tables that a table is like come before it, in their order. Of a
    value that several give the last counts, and its place is that of the first.

    Raises ValueError for two tables of one name, and for a table that is like itself.
    """
    parts_of_file = (data_sets, content["shared"], content["rows"])
    tables = {name: table for part in parts_of_file for name, table in part.items()}
    if len(tables) < sum(map(len, parts_of_file)):
        twice = sorted(name for name in tables if sum(name in part for part in parts_of_file) > 1)
        raise ValueError(f"two tables of one name: {', '.join(twice)}")

    def parts(name: str, within: tuple[str, ...] = ()) -> Iterator[Mapping[str, Any]]:
        if name in within:
            raise ValueError(f"a table that is like itself: {' > '.join((*within, name))}")
        for other in tables[name].get("like", ()):
            yield from parts(other, (*within, name))
        yield tables[name]

    return {name: _setting(content["paper"], parts(name)) for name in content["rows"]}


def _setting(paper: str, parts: Iterator[Mapping[str, Any]]) -> Setting:
    row, keys, methods = "", dict[str, Any](), dict[str, dict[str, Any]]()
    texts: dict[str, dict[str, str]] = {"remarks": {}, "chosen": {}, "deviations": {}, "official-remarks": {}}
    official: dict[str, Any] = {}
    for part in parts:
        row = part.get("row", row)
        for name, collected in texts.items():
            collected |= part.get(name, {})
        official |= part.get("official", {})
        keys |= _flat({name: value for name, value in part.items() if name not in _BESIDE_KEYS})
        for label, table in part.get("methods", {}).items():  # False: the row goes without
            methods[label] = methods.get(label, {}) | _flat(table or {})
            if table is False:
                del methods[label]

    def without_missing(by_key: Mapping[str, Any]) -> dict[str, Any]:
        """Without the keys of methods that the row has not."""
        return {k: v for k, v in by_key.items() if not k.startswith("methods.") or k.split(".")[1] in methods}

    return Setting(
        (paper, row, *(text for text in texts["remarks"].values() if text)),
        keys,
        methods,
        without_missing(texts["chosen"]),
        without_missing(texts["deviations"]),
        without_missing(official),
        tuple(text for text in texts["official-remarks"].values() if text),
    )


def _flat(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Values by their place: the keys of sections as ``section.key``."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _all() -> dict[str, Setting]:
    files = {
        path.stem: tomllib.loads(path.read_text(encoding="utf-8"))
        for path in sorted(Path(__file__).parent.glob("*.toml"))
    }
    data_sets = files.pop("data_sets")
    papers = {paper: read(content, data_sets) for paper, content in files.items()}
    return {f"{paper}/{name}": setting for paper, rows in papers.items() for name, setting in rows.items()}


SETTINGS = _all()
"""All rows by name, such as ``rolora/rte``: the paper's file, then the row."""
