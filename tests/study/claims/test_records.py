"""The verdicts of docs/results follow from the records beside them."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from made_up_runs import entry, made
from rondo.config import load
from rondo.study.claims import entry as entries
from rondo.study.claims import page
from rondo.study.runs import place
from site_scripts import RESULTS, site

ARCHIVES = sorted((RESULTS / "runs").glob("*.tar.xz"))


def test_there_are_records() -> None:
    assert ARCHIVES


@pytest.mark.sweep(8)
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_verdicts_follow_from_the_records(archive: Path, tmp_path: Path) -> None:
    """Without the data, and without a run. A page also follows a change of its entry or of a rule of judging."""
    name = archive.name.removesuffix(".tar.xz")
    trials = site("pages").unpacked(name, tmp_path)
    page.write(trials, tmp_path / "pages")
    facts = [folder / "facts" / f"{name}.json" for folder in (tmp_path / "pages", RESULTS)]
    made, published = (json.loads(file.read_text(encoding="utf-8")) for file in facts)
    assert made == published
    pages = [folder / f"{name}.md" for folder in (tmp_path / "pages", RESULTS)]
    assert pages[0].read_text(encoding="utf-8") == pages[1].read_text(encoding="utf-8")
    assert trials.stale() == []
    there = {run.folder.name: run for run in trials.runs()}
    kept = {run.name for run in (tmp_path / "out" / name).iterdir() if run.is_dir()}
    assert there.keys() - kept == {run.folder.name for run in trials.missing()}
    assert kept <= there.keys()
    for run in list(there.values())[: len(trials.entry.arms)]:  # those of the first seed
        config = load(run.folder / "config.toml", check_paths=False)
        assert place(run.folder.parent, run.arm, run.seed, config) == run.folder


def test_all_records_are_small() -> None:
    assert sum(archive.stat().st_size for archive in ARCHIVES) < 10_000_000


@pytest.mark.parametrize("name", entries.names())
def test_published_page_is_of_the_entry_that_there_is(name: str) -> None:
    """Where runs have no records, nothing else would tell that the entry says something else by now."""
    entry = entries.read(name)
    facts = json.loads((RESULTS / "facts" / f"{name}.json").read_text(encoding="utf-8"))
    assert [fact["claim"] for fact in facts["claims"]] == [claim.claim for claim in entry.claims]
    assert (facts["paper"], facts["item"]) == (entry.paper, entry.item)
    said, command = (RESULTS / f"{name}.md").read_text(encoding="utf-8").splitlines(), f"rondo reproduce {name}"
    assert said[0] == f"# {entry.title}"
    assert said[2] == f"{entry.paper}, {entry.item}. {entry.differs}"
    assert said[4] == (f"Changed after runs that had been seen: {entry.changed}" if entry.changed else f"    {command}")
    seeds = f". Seeds {', '.join(map(str, entry.seeds))}; differences are paired by seed"
    assert [line for line in said if line.startswith("Score: ") and seeds in line] != []
    table = "| claim | paper | what counts | at the end of each run | verdict | at equal bytes per client | verdict |"
    assert f"{table} seeds |" in said


@pytest.mark.parametrize("name", [name for name in entries.names() if entries.read(name).tuning is not None])
def test_values_that_a_search_has_chosen_are_on_its_page(name: str) -> None:
    entry = entries.read(name)
    assert entry.tuning is not None
    facts = json.loads((RESULTS / "facts" / f"{name}.json").read_text(encoding="utf-8"))
    if not all(fact.get("seeds") for fact in facts["claims"]):
        return  # no run that counts, so no table of arms
    rows = [line.split(" | ") for line in (RESULTS / f"{name}.md").read_text(encoding="utf-8").splitlines()]
    tuned = {row[0].removeprefix("| "): row[-1].removesuffix(" |") for row in rows}
    points = [", ".join(f"{key} = {value}" for key, value in point.items()) for point in entry.tuning.points()]
    assert [arm for arm in entry.searched if tuned[arm] not in points] == []


def test_records_of_a_run_tell_its_rows_and_the_number_of_its_clients_and_no_name(tmp_path: Path) -> None:
    """Nor is a run of another configuration among them, or of what nobody reads."""
    of_page = entry()
    trials = made(tmp_path / "out", of_page, {"dear": (10, [1.0]), "cheap": (10, [0.5])})
    run = trials.runs()[0].folder
    kept: dict[str, Any] = {"versions": {}, "python": "3", "device": "cpu", "threads": 1, "code_sha256": {}}
    kept |= {"processor": "a processor", "kernels": {"dtype": "float32"}}
    task = {"task": {"today": "2026-11-25"}}
    scores = {"per_client": {"client-0": {"score": 1.0, "loss": 2.0}}}
    contents = {
        "metrics.jsonl": {"round": 0, "scores": {"personal": scores}, "diagnostics": {"singular_values": {"x": [1.0]}}},
        "manifest.json": {**kept, "platform": "mine", "config": {**task, "data": {"source": "here"}}},
        "partition.json": {
            "clients": {"somebody": {"train": 3}, "another": {"train": 4}},
            "rows": 7,
            "examples_sha256": "c0ffee",
        },
    }
    for name, content in contents.items():
        (run / name).write_text(json.dumps(content), encoding="utf-8")
    shutil.copytree(run, run.with_name("dear-seed-0-former"))
    site("records").pack(tmp_path / "out", "own", tmp_path / "to", of_page, tmp_path)
    with tarfile.open(tmp_path / "to" / "own.tar.xz") as packed:
        packed.extractall(tmp_path / "again", filter="data")
    again = tmp_path / "again" / "own" / run.name
    told = json.loads((again / "partition.json").read_text(encoding="utf-8"))
    assert (told["clients"], told["rows"], told["examples_sha256"]) == ([0, 1], 7, "c0ffee")
    assert "somebody" not in str(told)
    assert json.loads((again / "manifest.json").read_text(encoding="utf-8")) == {**kept, "config": task}
    slim = {"round": 0, "scores": {"personal": {"per_client": {"client-0": {"score": 1.0}}}}, "diagnostics": {}}
    assert json.loads((again / "metrics.jsonl").read_text(encoding="utf-8")) == slim
    assert load(again / "config.toml").algorithm.name == "rolora-linear"
    assert not (again.parent / "dear-seed-0-former").exists()


@pytest.mark.sweep(4)
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_records_tell_nothing_of_where_they_were_made(archive: Path) -> None:
    with tarfile.open(archive) as packed:
        for member in packed.getmembers():
            file = packed.extractfile(member)
            assert file is not None
            assert (member.uname, member.mtime) == ("", 0)
            assert b"/home" not in (text := file.read())
            assert b'"source"' not in text
