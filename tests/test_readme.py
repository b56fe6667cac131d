"""What the README shows is run: its algorithm obeys the laws, its configuration loads, its table is the table."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from rondo import algorithms
from rondo.testing import check_algorithm

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text() if README.exists() else ""


def block(language: str, containing: str) -> str:
    found = [b for b in re.findall(rf"```{language}\n(.*?)```", TEXT, re.S) if containing in b]
    assert len(found) == 1
    return str(found[0])


@pytest.fixture
def prox(tmp_path: Path) -> ModuleType:
    path = tmp_path / "prox.py"
    path.write_text(block("python", "class FedProx"))
    spec = importlib.util.spec_from_file_location("prox", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_algorithm_obeys_the_laws(prox: ModuleType) -> None:
    assert [r for r in check_algorithm(prox.FedProx()) if r.outcome == "failed"] == []


def test_the_configuration_loads_but_for_the_files_that_the_reader_would_have() -> None:
    raw = tomllib.loads(block("toml", "[algorithm]"))
    with pytest.raises(config.ConfigError) as caught:
        config.load(raw)
    assert {p.path for p in caught.value.problems} == {"data.source", "data.test_source"}


def test_the_table_is_the_table() -> None:
    for name, entry in algorithms.TABLE.items():
        flags = ["yes" if flag else "no" for flag in (entry.exact, entry.linear, entry.personal)]
        row = [f"`{name}`", entry.summary, *flags, entry.up, entry.down, entry.paper]
        assert f"| {' | '.join(row)} |" in TEXT


def test_the_methods_for_clients_of_different_ranks_are_those_that_define_them() -> None:
    (listed,) = re.findall(r"Clients of different means \((.*?)\)", TEXT, re.S)
    ranked = {n for n in algorithms.names() if algorithms.load(n).client_ranks}
    assert set(re.findall(r"`(.*?)`", listed)) == ranked
