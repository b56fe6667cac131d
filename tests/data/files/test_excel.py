"""Excel files, and text files of a folder in several encodings."""

from __future__ import annotations

import zipfile
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from rondo.config import ConfigError
from rondo.config.inputs import DataConfig
from rondo.data.files.listing import Listing
from rondo.data.files.placed import places_of
from rondo.data.files.room import Room
from rondo.data.sources import client_rows, read_rows

openpyxl = pytest.importorskip("openpyxl")


def book(path: Path, *sheets: list[list[Any]]) -> Path:
    made = openpyxl.Workbook()
    made.remove(made.active)
    for number, rows in enumerate(sheets):
        sheet = made.create_sheet(f"Sheet{number}")
        for row in rows:
            sheet.append(row)
    made.save(path)
    return path


def test_rows_of_the_sheet_that_has_some(tmp_path: Path) -> None:
    rows = [["text", "label", None], ["gut", 1, None], [None, None, None], ["schön", 2.5, None], ["x", None, ""]]
    file = book(tmp_path / "north.xlsx", [], [*rows, ["y", date(2026, 1, 31)]], [["note"]])
    found = read_rows(file, "data.source")
    expected = [("gut", 1), ("schön", 2.5), ("x", None), ("y", "2026-01-31 00:00:00")]
    assert [(row["text"], row["label"]) for row in found] == expected
    assert [set(row) for row in found] == [{"text", "label"}] * 4
    assert places_of(found)(1) == f"{file}, line 4"


def test_clients_in_files_of_excel(tmp_path: Path) -> None:
    for name in ("north", "south"):
        book(tmp_path / f"{name}.xlsx", [["text", "label"], [f"in the {name}", "a"]])
    (tmp_path / "west.csv").write_text("text,label\nin the west,b\n")
    (tmp_path / "~$north.xlsx").write_bytes(b"lock")
    assert [reason for _, reason in Listing.of(tmp_path.iterdir()).others] == ["an Office program has it open"]
    found = client_rows(str(tmp_path), "data.clients_from", Room())
    assert {name: row["text"] for name, (row,) in found.items()} == {
        n: f"in the {n}" for n in ("north", "south", "west")
    }


@pytest.mark.parametrize(
    ("sheets", "message"),
    [
        ([[["a", "b"], [1, 2]], [["a"], [3]]], r"has 2 sheets with rows \('Sheet0', 'Sheet1'\): save each"),
        ([[["a", "a"], [1, 2]]], r"is not a valid xlsx file: two columns are called 'a'"),
        ([[["a"], [1, "stray"]]], r"row 2 has 'stray' in a column without a name"),
        ([[["a"]]], r"has no rows"),
    ],
)
def test_other_workbooks_are_refused(sheets: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        read_rows(book(tmp_path / "rows.xlsx", *sheets), "data.source")


def test_no_workbook_and_one_that_expands_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "rows.xlsx"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="is not a valid xlsx file: File is not a zip file"):
        read_rows(file, "data.source")
    with zipfile.ZipFile(book(file, [["a"], [1]]), "a", zipfile.ZIP_DEFLATED) as parts:
        parts.writestr("xl/large.xml", bytes(4 << 20))
    with pytest.raises(ConfigError, match=r"data\.max_read_mb: .*take more memory than the 2 MiB"):
        read_rows(file, "data.source", Room(2))


def test_encoding_is_that_of_each_file(tmp_path: Path) -> None:
    """With ``data.encoding`` set for one site's, others may be UTF-8."""
    for name, encoding in (("kiel", "cp1252"), ("bonn", "utf-8"), ("jena", "utf-8-sig"), ("köln", "utf-16")):
        (tmp_path / f"{name}.csv").write_bytes("text;label\nschön;ja\n".encode(encoding))
    room = Room.of(DataConfig(clients_from=str(tmp_path), encoding="cp1252"))
    found = client_rows(str(tmp_path), "data.clients_from", room)
    assert {row["text"] for rows in found.values() for row in rows} == {"schön"}
    assert len(found) == 4
