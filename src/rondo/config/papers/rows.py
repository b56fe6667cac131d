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
    chosen: Mapping[str, str]
    """The keys that the paper does not state, with the reason or a remark for each value."""


def read(content: Mapping[str, Any], data_sets: Mapping[str, Any]) -> dict[str, Setting]:
    """The settings of a paper's file, by the names of its rows.

    A table of the file is a part of a configuration, and may have four more entries: ``like``, names of tables that it
    is like, other rows among them; ``row``, its place in the paper; ``remarks``; and ``chosen``, the reasons for
    values that the paper does not state. Tables that a table is like come before it, in their order. Of a value that
    several give the last counts, and its place is that of the first.
    """
    tables = {**data_sets, **content["shared"], **content["rows"]}

    def parts(name: str) -> Iterator[Mapping[str, Any]]:
        for other in tables[name].get("like", ()):
            yield from parts(other)
        yield tables[name]

    return {name: _setting(content["paper"], parts(name)) for name in content["rows"]}


def _setting(paper: str, parts: Iterator[Mapping[str, Any]]) -> Setting:
    row, remarks, chosen, keys = "", dict[str, str](), dict[str, str](), dict[str, Any]()
    for part in parts:
        row = part.get("row", row)
        remarks |= part.get("remarks", {})
        chosen |= part.get("chosen", {})
        for name, value in part.items():
            if name not in ("like", "row", "remarks", "chosen"):
                keys |= {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
    return Setting((paper, row, *remarks.values()), keys, chosen)


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
