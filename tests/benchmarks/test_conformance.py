"""The harness of docs/results/conformance.md on doubles of published code, its page, and Rondo's rows."""

from __future__ import annotations

import sys
from pathlib import Path

import oracles
import pytest
from oracles import Array, Draw
from page import fetching, line, placed
from rows import Load, Row, Source, largest, outcome
from table import RONDO, ROWS

PAGE = Path(__file__).parents[2] / "docs" / "results" / "conformance.md"
DOUBLE = """
from helper import Unused
from not_installed.deep import decorated


class Server:
    def mean(self, uploads, rows):
        return sum(n * x for n, x in zip(rows, uploads)) / sum(rows)

    def plain(self, uploads, rows):
        return sum(uploads) / len(uploads)
"""
STUBS = ("not_installed", "not_installed.deep")


@pytest.fixture
def clones(tmp_path: Path) -> Path:
    """A folder with one clone, whose code needs a package that is not there."""
    code = tmp_path / "double" / "system"
    code.mkdir(parents=True)
    (code / "server_of_the_double.py").write_text(DOUBLE, encoding="utf-8")
    (code / "helper.py").write_text("class Unused: ...\n", encoding="utf-8")
    return tmp_path


def row(name: str, stubs: tuple[str, ...] = STUBS, folder: str = "") -> Row:
    def run(load: Load, d: Draw) -> Array:
        return getattr(load("server_of_the_double").Server(), name)(d.a, d.rows)

    source = Source("someone/double", "0" * 40, ("system",), folder)
    return Row(source, "FedAvg", name, run, oracles.averaged, "Said.", stubs)


def test_difference_is_of_the_unchanged_code_and_leaves_no_module(clones: Path) -> None:
    before, path = set(sys.modules), list(sys.path)
    assert float(outcome(row("mean"), clones)) < 1e-12
    assert float(outcome(row("plain"), clones)) > 0.1
    assert set(sys.modules) == before
    assert sys.path == path


def test_code_that_stops_or_is_not_there_is_told(clones: Path) -> None:
    assert outcome(row("lost"), clones) == "AttributeError"
    assert outcome(row("mean", ()), clones) == "ModuleNotFoundError"
    assert outcome(row("mean", folder="elsewhere"), clones) == "not fetched"


def test_table_goes_under_its_mark_and_code_is_fetched_at_its_commit() -> None:
    text = "# Page\n\n<!-- published -->\n| a |\n|---|\n| old |\n\nAfter.\n"
    assert placed(text, "published", ["| new |"]) == text.replace("old", "new")
    with pytest.raises(SystemExit, match="no mark <!-- rondo -->"):
        placed(text, "rondo", [])
    assert list(fetching([row("mean"), row("plain")])) == [
        "git clone https://github.com/someone/double double",
        f"git -C double checkout {'0' * 40}",
    ]


def test_page_has_every_row_of_the_program() -> None:
    page = PAGE.read_text(encoding="utf-8").splitlines()

    def without_number(text: str) -> list[str]:
        cells = text.split(" | ")
        return cells[:4] + cells[5:]

    shown = [without_number(text) for text in page if text.count(" | ") == 6 and "https://" in text]
    assert shown == [without_number(line(row, "")) for row in ROWS]


@pytest.mark.parametrize("name", RONDO)
def test_rondo_computes_what_the_paper_defines(name: str) -> None:
    assert float(largest(*RONDO[name])) < 1e-12
