"""Writes docs/dev/map.md from the rooms' docstrings: python tests/docs/house_map.py"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "dev" / "map.md"
HEAD = """# The map

One line per room of `src/rondo`: what it is for, and its files. `tests/docs/house_map.py` writes this page from the
docstrings of the rooms. Imports go one way, which `pyproject.toml` has under `[tool.importlinter]`.

| room | what it is for | files |
|---|---|---|
"""


def purpose(file: Path) -> str:
    """The first sentence of the file's docstring."""
    words = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(words.partition("\n\n")[0].split()).partition(". ")[0].rstrip(".")


def files(folder: Path) -> str:
    """The names in ``folder``, those of a folder within it in brackets."""
    names = [p.stem for p in sorted(folder.glob("*.py")) if p.stem != "__init__"]
    within = sorted(p for p in folder.iterdir() if (p / "__init__.py").is_file())
    return ", ".join([*names, *(f"**{p.name}** ({files(p)})" for p in within)])


def text() -> str:
    source = ROOT / "src" / "rondo"
    rooms = sorted(p for p in source.iterdir() if (p / "__init__.py").is_file())
    rows = [f"| `{room.name}` | {purpose(room / '__init__.py')} | {files(room)} |\n" for room in rooms]
    alone = [p for p in sorted(source.glob("*.py")) if p.stem != "__init__"]
    shared = [f"| `{file.stem}` | {purpose(file)} |\n" for file in alone]
    return (
        f"{HEAD}{''.join(rows)}\nFiles that all rooms share:\n\n| file | what it is for |\n|---|---|\n{''.join(shared)}"
    )


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
