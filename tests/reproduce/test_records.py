"""The verdicts of docs/results follow from the records beside them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from rondo.reproduce import entry as entries
from rondo.reproduce import page
from rondo.reproduce.trials import Trials

RESULTS = Path(__file__).parents[2] / "docs" / "results"
ARCHIVES = sorted((RESULTS / "runs").glob("*.tar.xz"))


def test_there_are_records() -> None:
    assert ARCHIVES


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_verdicts_follow_from_the_records(archive: Path, tmp_path: Path) -> None:
    """Without the data, and without a run. A page also follows a change of its entry or of a rule of judging."""
    name = archive.name.removesuffix(".tar.xz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "out", filter="data")
    entry = entries.read(name)
    for file in entry.files:
        (tmp_path / file).mkdir(parents=True)
    page.write(Trials(name, entry, tmp_path / "out", tmp_path), tmp_path / "pages")
    facts = [folder / "facts" / f"{name}.json" for folder in (tmp_path / "pages", RESULTS)]
    made, published = (json.loads(file.read_text(encoding="utf-8")) for file in facts)
    assert made == published
    pages = [folder / f"{name}.md" for folder in (tmp_path / "pages", RESULTS)]
    assert pages[0].read_text(encoding="utf-8") == pages[1].read_text(encoding="utf-8")


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_records_tell_nothing_of_where_they_were_made(archive: Path) -> None:
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            file = packed.extractfile(member)
            assert file is not None
            assert (member.uname, member.mtime) == ("", 0)
            assert b"/home" not in (text := file.read())
            assert b'"source"' not in text
