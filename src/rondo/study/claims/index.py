"""The page of all entries that have one, made from a file of facts of each; the templates of pages."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2

from rondo.config import toml_file
from rondo.records import durable
from rondo.records.directory import RunDirectory, as_written

_FACTS = "facts"
"""The folder of the facts, a file per entry."""


def write(pages: Path, name: str, facts: Mapping[str, Any]) -> None:
    """Write the facts of the entry ``name``, and the page of all."""
    durable.make_folder(pages / _FACTS)
    content = json.dumps(facts, indent=2, ensure_ascii=False).encode()
    durable.write_all(pages / _FACTS, {f"{name}.json": content})
    durable.write_all(pages, {"all.md": _index(pages).encode()})


def _index(pages: Path) -> str:
    claims = []
    for file in sorted((pages / _FACTS).glob("*.json")):
        with as_written(file):
            facts = RunDirectory(file.parent).read(file.name)
            claims += [_cells(facts, claim, file.stem) for claim in facts["claims"]]
    return template("all.md").render(claims=claims)


def _cells(facts: Mapping[str, Any], claim: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    """The cells of a claim in the page of all entries; of an open one with the seeds that would decide it, and the
    hours of their runs."""
    spent, missing = (f"{seconds / 3600:.1f}" for seconds in facts["seconds"])
    decide = ""
    if (seeds := claim.get("deciding_seeds")) is not None:
        decide = f"; {seeds} seeds would decide, {math.ceil(claim['deciding_seconds'] / 360) / 10} h more"
    return (
        f"{facts['paper']}, {facts['item']}",
        f"[{claim['claim']}]({quote(name)}.md)",
        claim["paper"],
        claim.get("here", "-"),
        claim.get("seeds", 0),
        claim.get("verdict", "open") + decide,
        claim.get("equal_bytes_per_client", "-"),
        f"{spent}, {missing}",
        f"`rondo reproduce {shlex.quote(facts.get('target', name))}`",
    )


@cache
def template(name: str) -> jinja2.Template:
    """The text of a page, ``name``, with the filters that its cells and numbers go through."""
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    environment.filters |= {
        "row": lambda cells: row(*cells),
        "listed": lambda values: ", ".join(map(str, values)),
        "quoted": shlex.quote,
        "inline": toml_file.inline,
        "shown": shown,
        "g": lambda value: f"{value:g}",
    }
    return environment.from_string((files("rondo.study.claims") / name).read_text(encoding="utf-8"))


def shown(value: float | None) -> str:
    """A number with three digits that count."""
    return "-" if value is None else f"{value:.2f}" if 1 <= abs(value) < 1e4 else f"{value:.3g}"


def row(*cells: Any) -> str:
    """A line of a table, which a stroke in a cell, as of a norm, or a new line would end."""
    return "| " + " | ".join(" ".join(str(cell).split()).replace("|", r"\|") for cell in cells) + " |"
