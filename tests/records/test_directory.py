"""The run directory: made, refused, opened and read back."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import platform
from contextlib import nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from outcomes import told
from records import line, summary
from rondo.config import ConfigError, load
from rondo.errors import Problem
from rondo.records import durable, manifest, schema
from rondo.records.directory import RunDirectory, to_toml
from rondo.records.manifest import environment, must_equal, recorded, rows_of
from watched import failing, noted, planted


def test_new_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "a" / "b", "fedit")
    assert directory.path.is_dir()
    assert (directory.adapter, directory.checkpoint) == (tmp_path / "a/b/adapter", tmp_path / "a/b/checkpoint")


def test_unnamed_directories_never_clash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their names start with the algorithm's."""
    monkeypatch.chdir(tmp_path)
    moment = datetime(2026, 1, 2, 3, 4, 5)
    monkeypatch.setattr("rondo.records.directory.datetime", SimpleNamespace(now=lambda: moment))
    paths = [RunDirectory.create(None, "package.module:Own").path for _ in range(4)]
    stem = "Own-20260102-030405"
    assert paths == [Path("runs", name) for name in (stem, f"{stem}-1", f"{stem}-2", f"{stem}-3")]


def test_directory_with_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ConfigError) as error:
        RunDirectory.create(tmp_path, "fedit")
    reason = "already holds a run, or what is left of one (manifest.json); name another folder"
    assert str(error.value) == f"rondo: 1 problem\n  --run-dir: {str(tmp_path)!r} {reason}"


@pytest.mark.parametrize("name", ["checkpoint", "metrics.jsonl", "summary.json"])
def test_remains_of_a_run_are_refused(name: str, tmp_path: Path) -> None:
    """A new run would take them for its own."""
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=rf"--run-dir: .*what is left of one \({name}\); name another folder"):
        RunDirectory.create(tmp_path, "fedit")


def test_new_directory_survives_a_power_failure(tmp_path: Path) -> None:
    with noted(durable, "sync") as calls:
        RunDirectory.create(tmp_path / "a" / "b" / "c", "fedit")
    assert [call.arguments for call in calls] == [(tmp_path,), (tmp_path / "a",), (tmp_path / "a" / "b",)]


def test_folder_with_other_files_is_accepted(tmp_path: Path) -> None:
    """A file in its place is refused."""
    (tmp_path / "notes.txt").write_text("x")
    assert RunDirectory.create(tmp_path, "fedit").path == tmp_path
    for path, code in ((tmp_path / "notes.txt", errno.EEXIST), (tmp_path / "notes.txt" / "run", errno.ENOTDIR)):
        with pytest.raises(ConfigError) as error:
            RunDirectory.create(path, "fedit")
        reason = f"{str(path)!r} cannot be made: {os.strerror(code)}; name another folder"
        assert str(error.value) == f"rondo: 1 problem\n  --run-dir: {reason}"


@pytest.mark.parametrize("present", [(), ("config.toml",), ("manifest.json",)])
def test_folder_without_a_run_is_not_opened(tmp_path: Path, present: tuple[str, ...]) -> None:
    for name in present:
        (tmp_path / name).write_text("")
    with pytest.raises(ConfigError) as error:
        RunDirectory.open(tmp_path)
    missing = "manifest.json" if "config.toml" in present else "config.toml"
    reason = f"{str(tmp_path)!r} is not a run directory: it has no {missing}; name the folder of a run"
    assert str(error.value) == f"config: 1 problem\n  RUN_DIR: {reason}"
    with pytest.raises(ConfigError, match="is not a run directory"):
        RunDirectory.open(tmp_path / "nowhere")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_pipe_in_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    for name in ("config.toml", "manifest.json"):
        (tmp_path / name).write_text("")
    os.mkfifo(tmp_path / "adapter" / "pipe")
    message = f"{str(tmp_path / 'adapter' / 'pipe')!r} is a pipe or a device, not a file: remove it"
    assert told(lambda: RunDirectory.open(tmp_path)) == [("RUN_DIR", message)]


@pytest.mark.parametrize("content", [b"{\n", b"\xff\n"])
def test_broken_metrics_are_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=r"  RUN_DIR: metrics\.jsonl, line 1 is not as a run writes it \(.+\)"):
        RunDirectory(tmp_path).rounds()


@pytest.mark.parametrize("rounds", [3, 1])
def test_metrics_of_a_finished_run_are_all_there(rounds: int, tmp_path: Path) -> None:
    """A file that was cut between two lines is damaged too."""
    directory = RunDirectory(tmp_path)
    directory.metrics.write_text("".join(json.dumps(line(i)) + "\n" for i in range(2)), encoding="utf-8")
    directory.write("summary.json", summary(2))
    assert [record["round"] for record in directory.rounds()] == [0, 1]
    directory.write("summary.json", summary(rounds))
    with pytest.raises(ConfigError, match=r"  RUN_DIR: metrics\.jsonl has 2 rounds, which is not what summary\.json"):
        directory.rounds()


@pytest.mark.parametrize(("name", "content"), [("metrics.jsonl", line(0)), ("summary.json", summary(0))])
def test_writer_and_readers_have_the_same_fields(name: str, content: dict[str, Any]) -> None:
    """A field that only one of the two knows is refused by both."""
    assert schema.parsed(name, schema.text(name, content)) == content
    more, less = {**content, "new": 1}, {key: value for key, value in content.items() if key != "scores"}
    less.pop("before", None)
    for wrong in (more, less):
        with pytest.raises(KeyError, match=r"new|scores|before"):
            schema.text(name, wrong)
        with pytest.raises(ValueError, match=r"new: Extra inputs|scores: Field required|before: Field required"):
            schema.parsed(name, json.dumps(wrong).encode())


def test_configuration_is_read_back(tmp_path: Path) -> None:
    directory = RunDirectory.create(tmp_path / "run", "fedit")
    config = load({"algorithm": {"name": "florg", "bases": "svd"}, "task": {"text": "Ünïcode 好 \"'\\"}, "rounds": 3})
    directory.write_config(config)
    directory.write("manifest.json", {})
    assert RunDirectory.open(directory.path).config() == config


def test_configuration_is_read_back_without_its_data(tmp_path: Path) -> None:
    """A finished run is opened on machines that lack them."""
    directory = RunDirectory(tmp_path)
    task, partition = {"text": "text", "label": "label"}, {"clients": 2}
    config = load({"data": {"source": "gone.csv"}, "task": task, "partition": partition}, check_paths=False)
    directory.write_config(config)
    assert directory.config() == config


def test_configuration_of_whole_tensors_has_no_adapter(tmp_path: Path) -> None:
    whole = load({"algorithm": {"name": "fedavg"}, "train": {"what": "all"}})
    assert not whole.has_factors
    assert [("[adapter]" in to_toml(config)) for config in (whole, load({}))] == [False, True]
    directory = RunDirectory(tmp_path)
    directory.write_config(whole)
    assert not directory.config().has_factors


def test_json_files_are_for_people_too(tmp_path: Path) -> None:
    """One key to a line, letters as they are."""
    RunDirectory(tmp_path).write("file.json", {"é": {"a": 1}})
    assert (tmp_path / "file.json").read_bytes() == '{\n  "é": {\n    "a": 1\n  }\n}\n'.encode()


def test_json_files_are_read_back(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    content = {"labels": ["é", "好", "😀", "\u202e"], "x": None, "y": 0.1}
    directory.write("manifest.json", content)
    assert directory.read("manifest.json") == content
    records = [line(0), line(1, skipped="好\n\u2028\x85")]
    text = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    directory.metrics.write_text(text, encoding="utf-8")
    assert directory.rounds() == records


@pytest.mark.parametrize("content", [None, "", "{", "\0"])
def test_missing_or_broken_file_is_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "partition.json").write_text(content)
    with pytest.raises(ConfigError, match=r"RUN_DIR: partition\.json (cannot be read|is not as a run writes it)"):
        RunDirectory(tmp_path).read("partition.json")


def test_file_without_utf8_is_named(tmp_path: Path) -> None:
    (tmp_path / "partition.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ConfigError, match=r"partition\.json is not as a run writes it"):
        RunDirectory(tmp_path).read("partition.json")


PACKAGES = ("rondo-fl", "torch", "transformers", "peft", "safetensors", "datasets", "flwr-datasets", "numpy")


def test_manifest_has_versions_and_machine() -> None:
    content = environment()
    assert content["versions"] == {package: importlib.metadata.version(package) for package in PACKAGES}
    assert os.sep not in json.dumps(content["versions"])
    assert content.keys() == {"versions", "python", "platform", "processor", "started"}
    assert (content["python"], content["platform"]) == (platform.python_version(), platform.platform())
    assert content["processor"]
    started = datetime.fromisoformat(content["started"])
    assert (started.utcoffset(), started.microsecond) == (timedelta(0), 0)


def test_manifest_names_packages_that_are_missing() -> None:
    with failing(importlib.metadata, "version", importlib.metadata.PackageNotFoundError("none")):
        assert environment()["versions"] == dict.fromkeys(PACKAGES, "not installed")


INFO = "processor\t: 0\nmodel name\t: Fast: 9 (R)  \nmodel name\t: Second\n"


@pytest.mark.parametrize(
    ("info", "known", "name"),
    [
        (INFO, "arm", "Fast: 9 (R)"),
        ("processor\t: 0\n", "arm", "arm"),
        ("", "", platform.machine()),
        (None, "arm", "arm"),
    ],
)
def test_processor_is_named_by_the_system(info: str | None, known: str, name: str, tmp_path: Path) -> None:
    """Else by its kind, or at least its architecture."""
    if info is not None:
        (tmp_path / "cpuinfo").write_text(info)
    with planted(platform, "processor", lambda: known):
        assert manifest._processor(tmp_path / "cpuinfo") == name


def test_rows_of_a_partition_are_taken_by_name() -> None:
    keys = ("rows", "examples_sha256", "clients_sha256", "test_rows", "test_examples_sha256")
    report = {key: key.upper() for key in keys}
    assert rows_of({**report, "labels": []}) == {**report, "more_tests": {}}
    assert rows_of({**report, "more_tests": {"b": {"examples_sha256": "B"}}})["more_tests"] == {"b": "B"}
    assert rows_of({}) == {**dict.fromkeys(keys), "more_tests": {}}


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


@pytest.mark.parametrize(
    ("then", "today", "words"),
    [
        ("worded otherwise", "one row per example", None),
        (None, "one row per example", 'was null, is "one row per example"'),
        ("one row per example", None, 'was "one row per example", is null'),
    ],
)
def test_reasons_may_be_worded_otherwise(then: str | None, today: str | None, words: str | None) -> None:
    before, now = ({"targets_only": {"on": False, "reason": reason}} for reason in (then, today))
    with nullcontext() if words is None else pytest.raises(ConfigError, match=rf"targets_only\.reason: {words}"):
        must_equal(before, now, whatever=False)


def test_key_of_the_configuration_that_came_later_counts_as_its_default() -> None:
    """A run of before goes on, and its result is opened, as it was."""
    now = {"config": recorded(load({}))}
    then = {"config": {**now["config"], "partition": {**now["config"]["partition"]}}}
    del then["config"]["partition"]["deal_tests"]
    must_equal(then, now, whatever=False)
    other = {"config": recorded(load({"partition": {"deal_tests": True}}))}
    with pytest.raises(ConfigError, match=r"config\.partition\.deal_tests: was false, is true"):
        must_equal(then, other, whatever=False)
    with pytest.raises(ConfigError, match=r"config\.rounds: was null, is 20"):
        must_equal({"config": None}, now, whatever=False)


def test_keys_of_another_version_are_compared_or_left() -> None:
    """A key that only the old manifest has is left; one that it lacks counts as null."""
    must_equal({"old": 1, "seed": 0}, {"seed": 0, "new": None}, whatever=False)
    with pytest.raises(ConfigError, match=r"  new\.key: was null, is 1\n"):
        must_equal({"seed": 0}, {"seed": 0, "new": {"key": 1}}, whatever=False)


def test_differences_are_headed_and_remedied_as_told() -> None:
    remedy = Problem("--flag", "set it")
    with pytest.raises(ConfigError) as error:
        must_equal({"seed": 0}, {"seed": 1}, whatever=False, remedy=remedy, source="rondo predict")
    assert str(error.value) == "rondo predict: 2 problems\n  seed: was 0, is 1\n  --flag: set it"
    must_equal({"seed": 0}, {"seed": 1}, whatever=True)
