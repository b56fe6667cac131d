"""The page of all entries that have one, made from a file of facts of each."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

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
    lines = [
        "# All claims",
        "",
        "Each by its own command. A difference is held against half of the paper's. Significantly above zero",
        "and at least the half is *seen*; only above zero is *seen, smaller*; significantly below the half is",
        "*not seen here*. The rest is *open*. One p, corrected for the other claims of its page, decides both sides.",
        "A claim is *not tested as stated* where its budget, precondition, condition or setting is another here.",
        "One run that breaks a theorem inside its own conditions is a *counterexample*. Numbers are those at the end",
        "of each run, with the rounds of each arm where they differ. Of an open claim stand the seeds that would",
        "decide it, if mean and deviation stay, and the hours of their runs.",
        "",
        "| paper | claim | paper's difference or bound | at the end of each run | seeds | verdict | "
        "at equal bytes per client | hours spent, missing | command |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for file in sorted((pages / _FACTS).glob("*.json")):
        with as_written(file):
            lines += _rows_of(RunDirectory(file.parent).read(file.name), file.stem)
    return "\n".join([*lines, ""])


def _rows_of(facts: Mapping[str, Any], name: str) -> list[str]:
    """The lines of an entry's claims in the page of all entries."""
    spent, missing = (f"{seconds / 3600:.1f}" for seconds in facts["seconds"])
    return [
        row(
            f"{facts['paper']}, {facts['item']}",
            f"[{claim['claim']}]({quote(name)}.md)",
            claim["paper"],
            claim.get("here", "-"),
            claim.get("seeds", 0),
            claim.get("verdict", "open") + _to_decide(claim),
            claim.get("equal_bytes_per_client", "-"),
            f"{spent}, {missing}",
            f"`rondo reproduce {shlex.quote(facts.get('target', name))}`",
        )
        for claim in facts["claims"]
    ]


def _to_decide(claim: Mapping[str, Any]) -> str:
    """The seeds that would decide an open claim, and the hours of their runs; empty where there are none."""
    if (seeds := claim.get("deciding_seeds")) is None:
        return ""
    return f"; {seeds} seeds would decide, {math.ceil(claim['deciding_seconds'] / 360) / 10} h more"


def row(*cells: Any) -> str:
    """A line of a table, which a stroke in a cell, as of a norm, or a new line would end."""
    return "| " + " | ".join(" ".join(str(cell).split()).replace("|", r"\|") for cell in cells) + " |"
