"""CoNLL's files of columns, and lists of numbered classes."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import datasets
import pytest

from rondo.data.files.columns import of_columns
from rondo.data.files.formats import read_file
from rondo.data.files.listing import Listing
from rondo.data.files.room import Room

TEXT = """-DOCSTART- -X- O

EU NNP B-ORG
rejects VBZ O

# id 7 domain=en
Peter NNP B-PER
# NN O
"""


def test_sentences_are_rows(tmp_path: Path) -> None:
    (tmp_path / "a.conll").write_text(TEXT)
    with gzip.open(tmp_path / "b.iob2.gz", "wt") as file:
        file.write(TEXT.replace("\n", "\r\n"))
    (tmp_path / "c.txt").write_text(TEXT)
    (tmp_path / "b.txt.gz").write_bytes((tmp_path / "b.iob2.gz").read_bytes())
    for name in ("a.conll", "b.iob2.gz", "c.txt", "b.txt.gz"):
        rows = read_file(tmp_path / name, Room())
        assert list(rows) == [
            {"tokens": ["EU", "rejects"], "column2": ["NNP", "VBZ"], "tags": ["B-ORG", "O"]},
            {"tokens": ["Peter", "#"], "column2": ["NNP", "NN"], "tags": ["B-PER", "O"]},
        ]
        assert [rows.places(i) for i in range(2)] == [f"{tmp_path / name}, line 3", f"{tmp_path / name}, line 7"]


def test_tabs_and_a_separator_of_ones_own() -> None:
    assert of_columns("New York\tB-LOC\nis\tO\n", None)[0] == [{"tokens": ["New York", "is"], "tags": ["B-LOC", "O"]}]
    assert of_columns("a\u2028b\tO\r\n", None)[0] == [{"tokens": ["a\u2028b"], "tags": ["O"]}]
    assert of_columns("New York|B-LOC\n", "|")[0] == [{"tokens": ["New York"], "tags": ["B-LOC"]}]


def test_text_files_of_a_folder_are_read_if_their_lines_end_in_tags(tmp_path: Path) -> None:
    (tmp_path / "north.txt").write_text(TEXT + "broken\n")
    (tmp_path / "README.txt").write_text("Notes of ward B-2\nblood group O\n\nsee the other file\nand this\n")
    (tmp_path / "pos.txt").write_text("EU NNP\nrejects VBZ\n")
    (tmp_path / "lost.txt").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.txt")
    (tmp_path / "torn.txt.gz").write_bytes(gzip.compress(TEXT.encode() * 99)[:40])
    found = Listing.of(tmp_path.iterdir())
    assert [file.name for file in found.rows] == ["north.txt"], "a line without a tag is an error of its own"
    assert "'pos.txt' (lines without tags such as O and B-PER" in found.unread()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a O\n\nb\nc O\n", "line 3 has 1 columns, not 2 as its sentence's last line"),
        ("a\nb\n", "line 1 has 1 columns, not a token and a tag"),
    ],
)
def test_lines_of_other_columns_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of_columns(text, None)


def test_lists_of_numbered_classes_have_names(tmp_path: Path) -> None:
    """As the hub's data sets of entities have them, in memory and in Parquet."""
    from rondo.data.files.tables import rows_of

    tags = datasets.List(datasets.ClassLabel(names=["O", "B-PER"]))
    features = datasets.Features({"tokens": datasets.List(datasets.Value("string")), "tags": tags})
    table = datasets.Dataset.from_list([{"tokens": ["a", "Ada"], "tags": [0, 1]}], features=features)
    table.to_parquet(str(tmp_path / "rows.parquet"))
    for rows in (rows_of(table, "train"), read_file(tmp_path / "rows.parquet", Room())):
        assert [row["tags"] for row in rows] == [["O", "B-PER"]]
