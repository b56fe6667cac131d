"""Writes the names of methods in README.md and their table in docs/methods.md, after declare.py has run."""

from __future__ import annotations

from pathlib import Path

from rondo import algorithms
from rondo.algorithms.entries import Entry

ROOT = Path(__file__).parents[2]


def tables() -> dict[str, str]:
    """The names or the table of methods on pages, by page: the core methods, then the others."""
    core = {name: entry for name, entry in algorithms.TABLE.items() if entry.core}
    more = {name: entry for name, entry in algorithms.TABLE.items() if not entry.core}
    names = [", ".join(f"`{name}`" for name in part) for part in (core, more)]
    short = f"{names[0]}.\n\nMore methods, which no claim rests on: {names[1]}.\n"
    head = "| name | what it does | properties | up | down | paper |\n" + "|---" * 6 + "|\n"
    rows = ["".join(_row(name, entry) for name, entry in part.items()) for part in (core, more)]
    return {
        "README.md": short,
        "docs/methods.md": f"{head}{rows[0]}\n**More methods**, which no claim rests on:\n\n{head}{rows[1]}{_whole()}",
    }


def _whole() -> str:
    """Which whole tensors travel: the exceptions among the methods."""
    named: dict[str, list[str]] = {}
    for name, entry in algorithms.TABLE.items():
        named.setdefault(entry.whole, []).append(f"`{name}`")
    most = max(named, key=lambda whole: len(named[whole]))
    others = "; ".join(f"{whole} ({', '.join(names)})" for whole, names in named.items() if whole != most)
    return f"\n*Whole tensors* that travel: {most}, except {others}.\n"


def properties(entry: Entry) -> str:
    """The properties that a method has, in a cell: narrower than a column for each."""
    words = {
        "exact": {"yes": "exact", "whole": "exact if whole"},
        "linear": {"yes": "linear", "one rank": "linear at one rank"},
        "personal": {"yes": "personal"},
    }
    had = [of.get(flag, "") for of, flag in zip(words.values(), entry.flags, strict=True)]
    return ", ".join(filter(None, had)) or "-"


def _row(name: str, entry: Entry) -> str:
    up, down = _formula(entry.up), _formula(entry.down)
    return f"| `{name}` | {entry.summary} | {properties(entry)} | {up} | {down} | {entry.paper} |\n"


def _formula(text: str) -> str:
    """A formula whose stars Markdown does not take for italics."""
    return text.replace("*", r"\*")


def filled(page: str, table: str) -> str:
    """``page`` with ``table`` between its marks."""
    start, end = "<!-- methods: tests/algorithms/page_tables.py -->\n", "<!-- end of methods -->\n"
    before, _, rest = page.partition(start)
    return f"{before}{start}{table}{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    for page, table in tables().items():
        path = ROOT / page
        path.write_text(filled(path.read_text(encoding="utf-8"), table), encoding="utf-8")
