"""The pages of results that are of several entries, and the words of verdicts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rondo.study.claims import entry as entries
from site_scripts import site

ROOT = Path(__file__).parents[2]
WORDED = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md", "docs/**/*.toml", "src/rondo/**/*.*")


@pytest.fixture(scope="module")
def script() -> Any:
    return site("pages")


def test_pages_are_what_the_script_writes(script: Any) -> None:
    for name, content in script.contents().items():
        assert (script.RESULTS / name).read_text(encoding="utf-8") == content, "make results"


def test_first_page_has_twelve_rows_and_a_reason_for_every_headline_that_is_not_seen(script: Any) -> None:
    rows = [line for line in (script.RESULTS / "README.md").read_text(encoding="utf-8").splitlines() if "](" in line]
    rows = [line for line in rows if line.startswith("| [")]
    assert len(rows) == 12
    said = (script.RESULTS / "README.md").read_text(encoding="utf-8").partition("## Why")[2]
    headlines = [re.sub(r"\[(\w+)\]\(\w+\.md\)", r"\1", line.split(" | ")[0].removeprefix("| ")) for line in rows]
    unseen = [h for h, line in zip(headlines, rows, strict=True) if "*seen" not in line]
    assert [headline for headline in unseen if f"**{headline}.**" not in said] == []


def test_every_paper_has_its_page(script: Any) -> None:
    assert {entries.read(name).paper for name in entries.names()} == set(script.PAPERS)


def test_no_verdict_is_a_word_of_before() -> None:
    """The log keeps its words."""
    files = {
        path for pattern in WORDED for path in ROOT.glob(pattern) if path.suffix in (".md", ".toml", ".py", ".tsv")
    }
    kept = ROOT / "docs" / "dev" / "log"
    said = re.compile(r"refut|holds? (?:here )?(?:or hold )?in direction|held in direction", re.IGNORECASE)
    found = [path for path in files if kept not in path.parents and said.search(path.read_text(encoding="utf-8"))]
    assert found == []
