"""Every entry of a folder is read, or named with the reason. None counts twice without a word."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from rondo.config.load import load
from rondo.data.files.listing import Listing
from rondo.data.sources import Source
from rondo.data.sources import load as load_rows
from rondo.errors import ConfigError


def source(**data: Any) -> Source:
    return load_rows(
        load({"task": {"text": "t", "label": "l"}, "data": data, "partition": {"kind": "iid", "clients": 1}})
    )


def put(folder: Path, *names: str) -> Path:
    """Files of a row each, and every row another."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        text = f"t,l\nx {name},1\n" if ".csv" in name or ".tsv" in name else "not data"
        (folder / name).write_text(text.replace(",", "\t") if ".tsv" in name else text)
    return folder


def told(**data: Any) -> tuple[Source, list[str]]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        loaded = source(**data)
    return loaded, [str(warning.message) for warning in said]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("kiel.xls", "unknown ending"),
        ("kiel.cvs", "unknown ending"),
        ("kiel.csv.zip", "unknown ending"),
        ("kiel.csv~", "unknown ending"),
        ("kiel", "unknown ending"),
        (".kiel.csv", "it is hidden"),
        ("._kiel.csv", "it is hidden"),
        ("~$kiel.xls", "an Office program has it open"),
    ],
)
def test_files_that_are_not_clients_are_named(name: str, reason: str, tmp_path: Path) -> None:
    put(tmp_path / "sites", "a.csv", "b.csv", name)
    loaded, said = told(clients_from=str(tmp_path / "sites"))
    assert list(loaded.clients or ()) == ["a", "b"]
    (line,) = said
    assert line.startswith(f"data.clients_from: not read: {name!r} ({reason}")


def test_links_to_nothing_folders_and_pipes_are_named(tmp_path: Path) -> None:
    put(tmp_path / "sites", "a.csv")
    put(tmp_path / "sites" / "old", "b.csv")
    (tmp_path / "sites" / "c.csv").symlink_to("gone.csv")
    os.mkfifo(tmp_path / "sites" / "d.csv")
    (line,) = told(clients_from=str(tmp_path / "sites"))[1]
    assert line.endswith("'c.csv' (it is a link to nothing), 'd.csv' (it is not a file), 'old' (it is a folder)")


MARKS = (".DS_Store", "_SUCCESS", ".part-0.csv.crc", "Thumbs.db", "desktop.ini", ".gitkeep", "_committed_17")


def test_marks_of_systems_are_no_data(tmp_path: Path) -> None:
    put(tmp_path / "sites", "a.csv", "_b.csv", *MARKS)
    put(tmp_path / "tests", "a.csv", *MARKS)
    loaded, said = told(clients_from=str(tmp_path / "sites"), test_source=str(tmp_path / "tests"))
    assert list(loaded.clients or ()) == ["_b", "a"]
    assert list(loaded.test_clients or ()) == ["a"]
    assert [line for line in said if "not read" in line] == []


def test_hidden_files_are_read_if_a_pattern_names_them(tmp_path: Path) -> None:
    put(tmp_path, ".a.csv", "b.csv")
    assert list(source(clients_from=str(tmp_path / ".*.csv")).clients or ()) == [".a"]
    assert list(source(clients_from=str(tmp_path / "*.csv")).clients or ()) == ["b"]


def test_pattern_that_matches_other_files_names_them(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "a.txt")
    assert "'a.txt' (lines without tags such as O and B-PER" in told(clients_from=str(tmp_path / "*"))[1][0]


def test_folder_without_rows_says_what_is_there(tmp_path: Path) -> None:
    put(tmp_path, "kiel.xls")
    with pytest.raises(ConfigError, match=r"match .* \(not read: 'kiel.xls' \(unknown ending"):
        source(clients_from=str(tmp_path))


def test_copy_of_a_clients_file_is_told(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "b.csv")
    (tmp_path / "a (1).csv").write_bytes((tmp_path / "a.csv").read_bytes())
    said = told(clients_from=str(tmp_path))[1]
    first, second = (str(tmp_path / name) for name in ("a (1).csv", "a.csv"))
    assert said == [
        f"data.clients_from: {first!r} and {second!r} have the same content, and are two clients: move a copy away"
    ]


def test_splits_beside_marks_and_other_files(tmp_path: Path) -> None:
    """They are no pictures for that."""
    put(tmp_path / "train", "part-0.csv", "part-1.csv", "kiel.xls", *MARKS)
    put(tmp_path / "validation", "part-0.tsv", *MARKS)
    loaded, said = told(source=str(tmp_path))
    assert [len(rows or ()) for rows in (loaded.train, loaded.test)] == [2, 1]
    assert said == [f"data.source: {Listing.of([tmp_path / 'train' / 'kiel.xls']).unread()}"]


def test_split_of_two_forms_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "one", "train.csv", "train.tsv")
    put(tmp_path / "two", "train.csv")
    put(tmp_path / "two" / "train", "part.csv")
    for folder, second in (("one", "train.tsv"), ("two", "train/part.csv")):
        with pytest.raises(ConfigError, match=f"'train.csv' and {second!r} in .* both are the split 'train'"):
            source(source=str(tmp_path / folder), test_split=None)


def test_missing_shard_is_named(tmp_path: Path) -> None:
    put(tmp_path / "data", "train-00000-of-00003.csv", "train-00002-of-00003.csv")
    with pytest.raises(ConfigError, match=r"lacks the shard 'train-00001-of-00003' of the split 'train'"):
        source(source=str(tmp_path), test_split=None)
