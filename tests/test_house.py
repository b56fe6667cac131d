"""The house's measures: what a reader can hold. Ceilings may only shrink."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "src" / "rondo"

LINES, OF_FUNCTION, ENTRIES, ROOMS = 400, 50, 14, 27
"""Most lines of a file, lines of a function without its docstring, entries of a folder, and entries of the root."""
FUNCTIONS = {
    "cli/results.py evaluate": 58,  # most of it are options, as of the next two
    "cli/privacy.py plan": 52,
    "cli/study.py tune": 57,
    "federation/server/run.py resume": 53,
    "study/compare/numbers.py numbers": 57,
}
"""Longer functions, none of which may grow."""
OF_METHODS = {"algorithms/factors", "algorithms/whole"}
"""Folders with a file per method, as large as the methods are many."""
MENTIONS = 55
"""Most files of the house that say anything of privacy: a promise is made in one room, and the others ask it."""
PATCHES = 226
"""Attributes of ours that tests replace by themselves. A double comes in by an argument."""
WATCHED = 57
"""Faults and notes that tests plant by :mod:`watched`."""


def sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def functions(file: Path) -> Iterator[tuple[str, int]]:
    """The functions of a file, each with its number of lines without the docstring."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first, of_docstring = node.body[0], 0
            if ast.get_docstring(node) is not None:
                of_docstring = (first.end_lineno or 0) - first.lineno + 1
            yield node.name, (node.end_lineno or 0) - node.lineno + 1 - of_docstring


def test_files_are_short() -> None:
    lines = {f.relative_to(HOUSE).as_posix(): f.read_text(encoding="utf-8").count("\n") for f in sources(HOUSE)}
    assert {file: count for file, count in lines.items() if count > LINES} == {}


def test_functions_are_short() -> None:
    named = {
        f"{file.relative_to(HOUSE).as_posix()} {name}": count
        for file in sources(HOUSE)
        for name, count in functions(file)
    }
    assert {name: count for name, count in named.items() if count > FUNCTIONS.get(name, OF_FUNCTION)} == {}


def test_folders_are_small() -> None:
    sizes = {}
    for folder in (f for f in HOUSE.rglob("*") if f.is_dir()):
        entries = [e for e in folder.iterdir() if e.name != "__pycache__" and e.suffix in ("", ".py")]
        sizes[folder.relative_to(HOUSE).as_posix()] = len(entries)
    large = {name: count for name, count in sizes.items() if count > ENTRIES}
    assert large.keys() <= OF_METHODS
    assert len([e for e in HOUSE.iterdir() if e.name != "__pycache__"]) <= ROOMS


def test_few_files_speak_of_privacy() -> None:
    files = [f for f in HOUSE.rglob("*") if f.suffix in (".py", ".toml")]
    assert sum("privacy" in f.read_text(encoding="utf-8").lower() for f in files) <= MENTIONS


def test_tests_say_what_they_saw() -> None:
    """``any`` and ``all`` alone show False when a test fails, not what it looked at."""
    bare = re.compile(r"^ *assert (any|all)\(", re.M)
    assert [f.relative_to(ROOT).as_posix() for f in sources(ROOT / "tests") if bare.search(f.read_text("utf-8"))] == []


def test_tests_replace_few_attributes() -> None:
    text = "".join(f.read_text("utf-8") for f in sources(ROOT / "tests"))
    assert len(re.findall(r"\bsetattr\(", text)) <= PATCHES
    assert len(re.findall(r"\b(?:planted|failing)\(|\bnoted\([\w.]+, \"", text)) <= WATCHED
