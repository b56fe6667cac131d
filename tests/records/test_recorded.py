"""Runs read from their files: finished, unfinished, being written, damaged."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import rondo
from kinds_of_runs import configured, make_sources
from rondo.errors import ConfigError
from rondo.records.directory import RunDirectory
from rondo.records.read import claims, folders, read, stopped
from rondo.records.schema import Holding, Partition, Round, Shape, Summary
from small_runs import reviews, write_rows

ROOT = Path(__file__).parents[2]
RECORD = (
    '{"round": %s, "sampled": 1, "clients": 1, "failed": [], "rejected": {}, "skipped": null, "loss": null, '
    '"scores": {}, "bytes_up": %s, "bytes_down": 0, "bytes_first_contact": 0, "seconds": %s}\n'
)
"""A line of metrics.jsonl, with its round, bytes and seconds to come."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded")
    config, _ = configured("a linear problem", folder)
    return rondo.run(config, run_dir=folder / "run", device="cpu").run_dir


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def test_finished_run_is_read_whole(finished: Path) -> None:
    run = read(finished)
    assert (run.name, run.seed, run.planned, len(run.rounds)) == ("run", 0, 3, 3)
    assert run.summary is not None
    assert run.measures_before == run.summary["measures"]["before"]
    assert list(run.partition["clients"]) == ["client-0", "client-1", "client-2", "client-3"]
    assert not run.higher_is_better


def test_run_that_goes_on_has_the_scores_of_its_checkpoint(finished: Path, copy: Path) -> None:
    (copy / "summary.json").unlink()
    run = read(copy)
    assert run.summary is None
    assert (run.before, run.measures_before) == (read(finished).before, read(finished).measures_before)


def test_line_that_is_being_written_is_left_out(copy: Path) -> None:
    (copy / "summary.json").unlink()
    whole = (copy / "metrics.jsonl").read_bytes()
    (copy / "metrics.jsonl").write_bytes(whole[:-20])
    assert [record["round"] for record in RunDirectory(copy).rounds()] == [0, 1]
    (copy / "metrics.jsonl").unlink()
    assert RunDirectory(copy).rounds() == []


@pytest.mark.parametrize(
    ("name", "content", "fragment"),
    [
        (
            "metrics.jsonl",
            '{"round": 0}\n',
            "metrics.jsonl, line 1 is not as a run writes it (sampled: Field required)",
        ),
        ("metrics.jsonl", "nonsense\n", "metrics.jsonl, line 1"),
        ("metrics.jsonl", "[]\n", "it is no table"),
        ("metrics.jsonl", RECORD % (1, "5", "0.5"), "line 1 is not as a run writes it (it is of round 1)"),
        ("metrics.jsonl", RECORD % (0, "1" + "0" * 400, "0.5"), "bytes_up"),
        ("metrics.jsonl", RECORD % (0, "5", "Infinity"), "seconds"),
        ("metrics.jsonl", RECORD % (0, "5", "0.5") * 2, "line 2 is not as a run writes it (it is of round 0)"),
        ("summary.json", "{", "summary.json"),
        ("summary.json", '{"primary": 3}', "summary.json"),
        ("partition.json", '{"clients": {"a": 3}}', "partition.json is not as a run writes it (clients.a"),
        ("manifest.json", "\x00", "manifest.json"),
        ("manifest.json", "[" * 100_000, "manifest.json"),
        ("sites.json", "3", "sites.json"),
        ("config.toml", "rounds = ", "not TOML"),
    ],
)
def test_damaged_file_is_named_in_one_line(copy: Path, name: str, content: str, fragment: str) -> None:
    (copy / name).write_text(content)
    with pytest.raises(ConfigError) as refused:
        read(copy)
    assert fragment in str(refused.value)
    assert len(refused.value.problems) == 1


def test_code_of_a_run_directory_is_not_imported(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy / "evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(copy)
    text = (copy / "config.toml").read_text()
    text = text.replace('name = "rolora-linear"', 'name = "evil:Method"').replace('"builtin:linear"', '"evil:model"', 1)
    (copy / "config.toml").write_text(text)
    assert read(copy).config["algorithm"]["name"] == "evil:Method"


def test_folder_of_runs_gives_each_with_its_label(copy: Path) -> None:
    listed = {"runs": [{"algorithm": "mine", "seed": 0, "run_dir": "run"}], "stopped": []}
    gone = {"algorithm": "other", "seed": 2, "run_dir": "gone", "reason": "diverged"}
    (copy.parent / "comparison.json").write_text(json.dumps({**listed, "stopped": [gone]}))
    (copy.parent / "tuning").mkdir()
    assert folders([copy.parent]) == [(copy, "mine")]
    assert folders([copy, copy.parent]) == [(copy, None)]
    assert stopped([copy.parent]) == [("other, seed 2", "diverged")]
    (copy.parent / "comparison.json").unlink()
    copy.rename(copy.parent / "half-seed-0-f9609f8c")
    assert folders([copy.parent]) == [(copy.parent / "half-seed-0-f9609f8c", "half")]
    (copy.parent / "comparison.json").write_text('{"runs": 3}')
    with pytest.raises(ConfigError, match=r"comparison\.json is not as a run writes it"):
        folders([copy.parent])


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_path_without_a_run_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=name):
        folders([tmp_path / name])


def test_claims_of_an_entry_are_those_on_its_page(copy: Path) -> None:
    out = copy.parent.parent
    facts = {"claim": "ahead", "paper": "0.05", "here": "0.04", "seeds": 5, "verdict": "holds"}
    facts["equal_bytes_per_client"] = "open"
    (out / "pages" / "facts").mkdir(parents=True, exist_ok=True)
    page = out / "pages" / "facts" / f"{copy.parent.name}.json"
    page.write_text(json.dumps({"paper": "RoLoRA", "item": "Figure 5", "claims": [facts], "seconds": [1, 2]}))
    (claim,) = claims([copy])
    assert (claim.source, claim.paper, claim.verdict) == ("RoLoRA, Figure 5", "0.05", "holds")
    assert claim.equal_bytes_per_client == "open"
    page.unlink()
    assert claims([copy]) == []


def test_every_field_of_the_schema_is_written_by_some_run(finished: Path, tmp_path: Path) -> None:
    """The reverse, a field that is written and not in the schema, ends any run of these tests."""
    sources = make_sources(tmp_path)
    private: dict[str, Any] = {
        "privacy": {"adversary": "server", "unit": "example", "clip": 1.0, "noise": 1.0, "delta": 0.01}
    }
    private |= {"clients": {"weighting": "uniform"}, "evaluation": {"diagnostics_every": 0}}
    private |= {"task": {"text": "text", "label": "label", "max_length": 32, "labels": ["neg", "pos"]}}
    write_rows(sources / "test.csv", reviews(20, seed=1))
    full = {"clients": {"weighting": "uniform", "sampling": "full"}}
    files = {"source": str(sources / "rows.csv"), "test_source": str(sources / "test.csv")}
    dealt = {"data": files, "partition": {"clients": 4, "deal_tests": True}}
    changes: list[dict[str, Any]] = [
        {"evaluation": {"local_only": True, "diagnostics_every": 1}},
        private,
        private
        | {
            "privacy": {"adversary": "reader", "unit": "client", "clip": "adaptive", "noise": 1.0, "delta": 0.01},
            **full,
        },
        {"algorithm": {"name": "flexlora"}, "clients": {"ranks": {"1": 0.5, "2": 0.5}}, **dealt},
    ]
    runs = [RunDirectory(finished)]
    for number, of_run in enumerate(changes):
        config, _ = configured("shared factors", sources, **of_run)
        runs.append(RunDirectory(rondo.run(config, run_dir=tmp_path / str(number), device="cpu").run_dir))
    lines = [line for run in runs for line in run.rounds()]
    partitions = [run.read("partition.json") for run in runs]
    written: list[tuple[type[Shape], Sequence[Mapping[str, Any]]]] = [
        (Round, lines),
        (Partition, partitions),
        (Summary, [run.read("summary.json") for run in runs]),
        (Holding, [holding for partition in partitions for holding in partition["clients"].values()]),
    ]
    table = (
        (ROOT / "docs" / "run-directory.md").read_text(encoding="utf-8").partition("## A line of `metrics.jsonl`")[2]
    )
    documented = [line.split("|")[1] for line in table.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    assert Round.model_fields.keys() == {key for keys in documented for key in re.findall(r"`(\w+)`", keys)}
    for shape, contents in written:
        assert shape.model_fields.keys() == {field for content in contents for field in content}
