"""What a benchmark or an example imports from Rondo exists: they run at their smallest in slow tests only."""

from __future__ import annotations

import ast
import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = sorted(path for folder in ("benchmarks", "examples") for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_names_imported_from_rondo_exist(program: Path) -> None:
    lines = [
        node for node in ast.walk(ast.parse(program.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    ]
    named = [(str(line.module), name.name) for line in lines for name in line.names]
    ours = [(module, name) for module, name in named if module.split(".")[0] == "rondo"]
    lost = [
        f"{module}.{name}"
        for module, name in ours
        if not hasattr(importlib.import_module(module), name) and find_spec(f"{module}.{name}") is None
    ]
    assert lost == []
