"""The run directory: made, refused, opened and read back."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from rondo.config import ConfigError, load
from rondo.runs.storage import durable
from rondo.runs.storage.directory import RunDirectory
from rondo.runs.storage.manifest import environment, must_equal


def test_new_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "a" / "b", "fedit")
    assert directory.path.is_dir()
    assert (directory.adapter, directory.checkpoint) == (tmp_path / "a/b/adapter", tmp_path / "a/b/checkpoint")


def test_unnamed_directories_never_clash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names start with the algorithm's."""
    monkeypatch.chdir(tmp_path)
    moment = datetime(2026, 1, 2, 3, 4, 5)
    monkeypatch.setattr("rondo.runs.storage.directory.datetime", SimpleNamespace(now=lambda: moment))
    paths = [RunDirectory.create(None, "package.module:Own").path for _ in range(4)]
    stem = "Own-20260102-030405"
    assert paths == [Path("runs", name) for name in (stem, f"{stem}-1", f"{stem}-2", f"{stem}-3")]


def test_directory_with_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ConfigError, match=r"already holds a run, .*; name another folder"):
        RunDirectory.create(tmp_path, "fedit")


@pytest.mark.parametrize("name", ["checkpoint", "metrics.jsonl", "summary.json"])
def test_remains_of_a_run_are_refused(name: str, tmp_path: Path) -> None:
    """A new run would take them for its own."""
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=rf"--run-dir: .*what is left of one \({name}\); name another folder"):
        RunDirectory.create(tmp_path, "fedit")


def test_new_directory_survives_a_power_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[Path] = []
    monkeypatch.setattr(durable, "sync", flushed.append)
    RunDirectory.create(tmp_path / "a" / "b" / "c", "fedit")
    assert flushed == [tmp_path, tmp_path / "a", tmp_path / "a" / "b"]


def test_folder_with_other_files_is_accepted(tmp_path: Path) -> None:
    """A file in its place is refused."""
    (tmp_path / "notes.txt").write_text("x")
    assert RunDirectory.create(tmp_path, "fedit").path == tmp_path
    for path in (tmp_path / "notes.txt", tmp_path / "notes.txt" / "run"):
        with pytest.raises(ConfigError, match=r"--run-dir: .* cannot be made"):
            RunDirectory.create(path, "fedit")


@pytest.mark.parametrize("present", [(), ("config.toml",), ("manifest.json",)])
def test_folder_without_a_run_is_not_opened(tmp_path: Path, present: tuple[str, ...]) -> None:
    for name in present:
        (tmp_path / name).write_text("")
    with pytest.raises(ConfigError, match=r"RUN_DIR: .* is not a run directory: it has no"):
        RunDirectory.open(tmp_path)
    with pytest.raises(ConfigError, match="is not a run directory"):
        RunDirectory.open(tmp_path / "nowhere")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_pipe_in_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    for name in ("config.toml", "manifest.json"):
        (tmp_path / name).write_text("")
    os.mkfifo(tmp_path / "adapter" / "pipe")
    with pytest.raises(ConfigError) as error:
        RunDirectory.open(tmp_path)
    message = f"{str(tmp_path / 'adapter' / 'pipe')!r} is a pipe or a device, not a file: remove it"
    assert [(p.path, p.message) for p in error.value.problems] == [("RUN_DIR", message)]


@pytest.mark.parametrize("content", [None, b"{", b"\xff"])
def test_broken_metrics_are_named(content: bytes | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=r"  RUN_DIR: metrics\.jsonl cannot be read: .+"):
        RunDirectory(tmp_path).rounds()


def test_configuration_is_read_back(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run", "fedit")
    config = load({"algorithm": {"name": "florg", "bases": "svd"}, "task": {"text": "Ünïcode 好 \"'\\"}, "rounds": 3})
    directory.write_config(config)
    directory.write("manifest.json", {})
    assert RunDirectory.open(directory.path).config() == config


def test_json_files_are_read_back(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    content = {"labels": ["é", "好", "😀", "\u202e"], "x": None, "y": 0.1}
    directory.write("manifest.json", content)
    assert directory.read("manifest.json") == content
    records = [{"round": 0, "loss": None}, {"round": 1, "client": "好\n\u2028\x85"}]
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    directory.metrics.write_text(text, encoding="utf-8")
    assert directory.rounds() == records


@pytest.mark.parametrize("content", [None, "", "{", "\0"])
def test_missing_or_broken_file_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "partition.json").write_text(content)
    with pytest.raises(ConfigError, match=r"RUN_DIR: partition\.json cannot be read"):
        RunDirectory(tmp_path).read("partition.json")


def test_file_without_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "partition.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ConfigError, match=r"partition\.json cannot be read"):
        RunDirectory(tmp_path).read("partition.json")


def test_manifest_has_versions_and_machine() -> None:
    manifest = environment()
    assert {"rondo-fl", "torch", "transformers", "peft", "safetensors"} <= set(manifest["versions"])
    assert "not installed" not in manifest["versions"].values()
    assert all(manifest[key] for key in ("python", "platform", "processor", "started"))
    assert os.sep not in json.dumps(manifest["versions"])


def test_resumption_compares_all_but_time_and_system() -> None:
    """Another processor rounds otherwise."""
    now = environment()
    must_equal({**now, "started": "earlier", "platform": "another"}, now, whatever=False)
    for key in now.keys() - {"started", "platform"}:
        with pytest.raises(ConfigError, match=f"{key}.*: was "):
            must_equal({**now, key: {} if key == "versions" else "another"}, now, whatever=False)


def test_difference_has_both_values_and_a_remedy() -> None:
    with pytest.raises(ConfigError) as error:
        must_equal({"seed": 1, "config": {"rounds": 2}}, {"seed": None, "config": {"rounds": "é"}}, whatever=False)
    lines = str(error.value).splitlines()
    assert lines[:3] == ["rondo resume: 3 problems", '  config.rounds: was 2, is "é"', "  seed: was 1, is null"]
    assert lines[3].startswith("  --allow-nondeterministic: set it to resume anyway")


def test_reasons_hide_no_other_difference() -> None:
    before, now = ({"cases": {str(i): {"on": i + d, "reason": f"{d}"} for i in range(8)}} for d in (0, 1))
    with pytest.raises(ConfigError) as error:
        must_equal(before, now, whatever=False)
    assert [p.path for p in error.value.problems[:-1]] == [f"cases.{i}.on" for i in range(8)]


@pytest.mark.parametrize(("then", "equal"), [("worded otherwise", True), (None, False)])
def test_reasons_may_be_worded_otherwise(then: str | None, equal: bool) -> None:
    before, now = ({"targets_only": {"on": False, "reason": reason}} for reason in (then, "one row per example"))
    if equal:
        must_equal(before, now, whatever=False)
        return
    with pytest.raises(ConfigError, match=r"targets_only\.reason: was null"):
        must_equal(before, now, whatever=False)
