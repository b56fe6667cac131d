"""Code that Python 3.11 runs right and a later one does not."""

from __future__ import annotations

import symtable
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = [file for folder in ("src", "benchmarks", "examples") for file in sorted((ROOT / folder).rglob("*.py"))]
INLINED = ("listcomp", "dictcomp", "setcomp")


def lost(table: symtable.SymbolTable) -> Iterator[str]:
    """Names that a function has from one around it, and that a comprehension in it binds too. Python 3.12 and 3.13 run
    the comprehension in the function itself, and a generator there then finds no value under the name."""
    if isinstance(table, symtable.Function):
        from_outside = set(table.get_frees())
        for inner in table.get_children():
            if inner.get_name() in INLINED and isinstance(inner, symtable.Function):
                yield from (f"{table.get_name()}: {name}" for name in sorted(from_outside & {*inner.get_locals()}))
    for inner in table.get_children():
        yield from lost(inner)


def test_comprehensions_bind_no_name_from_outside() -> None:
    tables = {file: symtable.symtable(file.read_text(encoding="utf-8"), file.name, "exec") for file in FILES}
    assert [(file, name) for file, table in tables.items() for name in lost(table)] == []


def test_the_rule_sees() -> None:
    source = "def outer(value):\n  def points(xs):\n    a = [value(x) for x in xs]\n    return {value for value in a}\n"
    assert list(lost(symtable.symtable(source, "", "exec"))) == ["points: value"]
    assert list(lost(symtable.symtable(source.replace("{value for value", "{v for v"), "", "exec"))) == []
