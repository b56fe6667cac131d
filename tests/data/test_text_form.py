"""Separator and encoding of text files, as Excel writes them in Western Europe."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import rondo
from rondo.config import ConfigError, load
from rondo.data.files.room import Room, TextForm
from rondo.data.sources import load as load_source
from rondo.data.sources import read_rows
from small_runs import reviews, save_tiny_bert, settings

TEXT = 'Filiale;Text;Art\nKöln;"zu; spät";Gebühr\nÜlm;20,5 €;Netz\n'
ROWS = [{"Filiale": "Köln", "Text": "zu; spät", "Art": "Gebühr"}, {"Filiale": "Ülm", "Text": "20,5 €", "Art": "Netz"}]


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-8", "UTF_8"])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.tsv"])
def test_rows_of_a_german_excel_file(tmp_path: Path, encoding: str, name: str) -> None:
    content = TEXT.encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    assert list(read_rows(tmp_path / name, "data.source", Room(form=TextForm(";", encoding)))) == ROWS


def test_all_files_of_a_run_have_the_form(tmp_path: Path) -> None:
    for name in ("train.csv", "test.csv", "late.csv"):
        (tmp_path / name).write_text(TEXT, encoding="cp1252")
    files = {
        "source": str(tmp_path / "train.csv"),
        "test_source": str(tmp_path / "test.csv"),
        "more_tests": {"late": str(tmp_path / "late.csv")},
    }
    data = {**files, "separator": ";", "encoding": "cp1252"}
    source = load_source(
        load({"task": {"text": "Text", "label": "Art"}, "data": data, "partition": {"kind": "iid", "clients": 2}})
    )
    assert list(source.train or ()) == list(source.test or ()) == list(source.more_tests["late"]) == ROWS


def test_files_to_evaluate_and_predict_have_the_form_of_the_run(tmp_path: Path) -> None:
    def written(name: str, rows: list[dict[str, Any]]) -> str:
        lines = ["text;label", *(f"{row['text']};{row['label']}ö" for row in rows)]
        (tmp_path / name).write_text("\n".join(lines), encoding="cp1252")
        return str(tmp_path / name)

    data = {"source": written("train.csv", reviews(24)), "separator": ";", "encoding": "cp1252"}
    config = settings(save_tiny_bert(tmp_path / "bert"), data=data, rounds=1)
    rondo.run(config, run_dir=tmp_path / "run", device="cpu")
    other = written("other.csv", reviews(6, seed=1))
    assert rondo.evaluate(tmp_path / "run", data=other, device="cpu")["test"]["examples"] == 6
    assert {row["label"] for row in rondo.predict(tmp_path / "run", other, device="cpu")} <= {"posö", "negö"}


@pytest.mark.parametrize(
    ("data", "fragment"),
    [
        ({"encoding": "cp12522"}, "data.encoding: 'cp12522' is no encoding of text that Python knows: utf-8, cp1252"),
        ({"encoding": "rot13"}, "data.encoding: 'rot13' is no encoding of text"),
        ({"separator": '"'}, "data.separator: '\"' cannot stand between columns"),
    ],
)
def test_form_that_no_file_has_is_refused(data: dict[str, Any], fragment: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load({"data": data})
    assert fragment in str(caught.value)


def test_file_in_another_encoding_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TEXT, encoding="cp1252")
    with pytest.raises(ConfigError, match=r"is not ascii text; set data\.encoding"):
        read_rows(tmp_path / "a.csv", "data.source", Room(form=TextForm(";", "ascii")))


# --- files of several programs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("separator", [None, ",", ";"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "t,l\nx; y,1\n"),
        ("a.csv", 't;l\n"x; y";1\n'),
        ("a.csv", "t\tl\nx; y\t1\n"),
        ("a.csv", "t|l\nx; y|1\n"),
        ("a.tsv", "t,l\nx; y,1\n"),
        ("a.tsv", "sep=|\nt|l\nx; y|1\n"),
        ("a.csv", "sep=;\r\nt;l\r\n'x; y';1\r\n".replace("'", '"')),
        ("a.csv", "sep=\t\nt\tl\nx; y\t1\n"),
        # Cells to the right that were once used, and lines below.
        ("a.csv", "t,l,,\nx; y,1,,\n,,,\n,,,\n"),
        ("a.csv", "t;l;\nx, y;1;\n;;\n".replace("x, y", '"x; y"')),
        ("a.tsv", "t\tl\t\nx; y\t1\t\n\t\t\n"),
    ],
)
def test_separator_is_the_files_own(tmp_path: Path, name: str, content: str, separator: str | None) -> None:
    (tmp_path / name).write_text(content, newline="")
    rows = read_rows(tmp_path / name, "data.source", Room(form=TextForm(separator)))
    assert list(rows) == [{"t": "x; y", "l": "1"}]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-8-sig"])
@pytest.mark.parametrize("asked", ["utf-8", "cp1252"])
def test_wide_letters_say_so_themselves(tmp_path: Path, encoding: str, asked: str) -> None:
    if (encoding, asked) == ("utf-8-sig", "cp1252"):
        pytest.skip("three letters of cp1252 are no mark")
    (tmp_path / "a.csv").write_bytes(TEXT.encode(encoding))
    assert list(read_rows(tmp_path / "a.csv", "data.source", Room(form=TextForm(";", asked)))) == ROWS
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
    (tmp_path / "a.jsonl").write_bytes(lines.encode(encoding))
    assert list(read_rows(tmp_path / "a.jsonl", "data.source", Room(form=TextForm(None, asked)))) == ROWS


def test_half_a_wide_letter_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(TEXT.encode("utf-16-le")[:-1])
    with pytest.raises(ConfigError, match=r"data\.source: .*a\.csv' is not a valid csv file: .*truncated data"):
        read_rows(tmp_path / "a.csv", "data.source", Room(form=TextForm(";")))


@pytest.mark.parametrize(("text", "line"), [("sep=;\nt;l\nx;1\ny;2;3\n", 4), ("t,l,,\nx,1,,\ny,2,,3\n", 3)])
def test_cell_beyond_the_named_columns_is_refused(text: str, line: int, tmp_path: Path) -> None:
    """Lines are counted behind a line for Excel, too."""
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ConfigError, match=f"line {line} has not 2 columns like the header"):
        read_rows(tmp_path / "a.csv", "data.source")


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.json", "a.parquet"])
def test_pointer_of_git_lfs_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n")
    with pytest.raises(ConfigError, match=f"{name}' is a pointer of Git LFS and not the file itself: run git lfs pull"):
        read_rows(tmp_path / name, "data.source")
