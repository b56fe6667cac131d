"""README and the pages under docs agree with the code: the algorithm, the configuration and every table."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from rondo import algorithms, config
from rondo.algorithms.table import RULES
from rondo.algorithms.wrappers.robust import MEANS
from rondo.params import everything
from rondo.testing import check_algorithm

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
METHODS = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")


def block(language: str, containing: str) -> str:
    """The only block of README in ``language`` that contains these words."""
    blocks = [b for b in re.findall(rf"```{language}\n(.*?)```", README, re.S) if containing in b]
    assert len(blocks) == 1
    return str(blocks[0])


def section(page: str, title: str) -> str:
    """The text under the heading ``title``, up to the next one of the same level."""
    (text,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.M | re.S)
    return str(text)


def names_in(text: str) -> set[str]:
    return set(re.findall(r"`([a-z0-9-]+)`", text)) & set(algorithms.names())


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


def test_readme_length() -> None:
    assert len(README.splitlines()) <= 180


def test_fedprox_passes_the_laws(prox: ModuleType) -> None:
    assert [r for r in check_algorithm(prox.FedProx(), seeds=(0,)) if r.outcome == "failed"] == []


def test_readme_configuration_lacks_only_its_files() -> None:
    raw = tomllib.loads(block("toml", "[algorithm]"))
    with pytest.raises(config.ConfigError) as caught:
        config.load(raw)
    assert {p.path for p in caught.value.problems} == {"data.source", "data.test_source"}


def test_readme_table_of_methods() -> None:
    """Methods for factors have a row each, the others and those of least squares share one."""
    of_factors = {n for n in algorithms.names() if algorithms.entry(n).traits.needs_factors}
    *rows, (others, _) = re.findall(r"^\| (`.+?`) \| (.+?) \|$", section(README, "Methods"), re.M)
    assert rows == [(f"`{name}`", e.summary) for name, e in algorithms.TABLE.items() if name in of_factors]
    assert others == ", ".join(f"`{name}`" for name in algorithms.TABLE if name not in of_factors)


def test_full_table_of_methods() -> None:
    rows = re.findall(r"^\| `.*\|$", METHODS.partition("\n## ")[0], re.M)
    expected = []
    for name, entry in algorithms.TABLE.items():
        row = [f"`{name}`", entry.summary, *entry.flags, entry.up, entry.down, entry.whole, entry.paper]
        expected.append(f"| {' | '.join(row)} |")
    assert rows == expected


def test_methods_with_rank_budgets() -> None:
    listed = names_in(section(METHODS, "Clients with different rank budgets"))
    assert listed == {n for n in algorithms.names() if algorithms.entry(n).traits.client_ranks}


def test_methods_with_server_optimizers() -> None:
    methods = {name: algorithms.get(name) for name in algorithms.names()}
    stepped = {n: m for n, m in methods.items() if m.linear and m.traits.same_coordinates and not m.traits.server_step}
    accepted = {n for n, m in stepped.items() if m.traits.keeps != everything}
    assert names_in(section(METHODS, "Server optimizers")) == accepted


def test_robust_rules() -> None:
    rows = re.findall(r'^\| `"(.+?)"` \| .* \| (all|linear) \|$', section(METHODS, "Robust rules"), re.M)
    assert dict(rows) == {rule: "linear" if rule in MEANS else "all" for rule in RULES}


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md"))]
)
def test_links_lead_to_files(page: str) -> None:
    targets = re.findall(r"\]\((?!https?://|#)(.+?)(?:#.*?)?\)", (ROOT / page).read_text(encoding="utf-8"))
    assert [t for t in targets if not (ROOT / page).parent.joinpath(t).exists()] == []
