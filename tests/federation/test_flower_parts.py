"""Flower's private parts: each by its name, so that another version says which one has gone."""

from __future__ import annotations

import ast
import importlib
from importlib.metadata import version
from pathlib import Path

import pytest

import rondo
from rondo.federation import flower

SOURCE = Path(rondo.__file__).parent
PUBLIC = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}


def imported(path: Path) -> list[tuple[str, str]]:
    """Modules of Flower and their parts that a file imports."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)]
    return [(node.module or "", alias.name) for node in nodes for alias in node.names if is_flower(node.module or "")]


def is_flower(module: str) -> bool:
    return module.partition(".")[0] == "flwr"


def here(owner: object, name: str, of: str) -> None:
    assert hasattr(owner, name), f"flwr {version('flwr')} has no {of}.{name}, which rondo.federation.flower names"


@pytest.mark.parametrize(("module", "name"), imported(Path(flower.__file__)))
def test_part_is_there(module: str, name: str) -> None:
    try:
        owner = importlib.import_module(module)
    except ModuleNotFoundError:
        pytest.fail(f"flwr {version('flwr')} has no {module}, which rondo.federation.flower names")
    if not hasattr(owner, name):
        importlib.import_module(f"{module}.{name}")
    here(owner, name, module)


def test_no_other_file_knows_a_private_part() -> None:
    files = [path for path in SOURCE.rglob("*.py") if path != Path(flower.__file__)]
    private = {f"{path.relative_to(SOURCE)}: {module}" for path in files for module, _ in imported(path)} - {
        f"{path.relative_to(SOURCE)}: {module}" for path in files for module in PUBLIC
    }
    assert private == set()
