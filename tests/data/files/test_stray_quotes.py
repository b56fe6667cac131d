"""A stray quote in a CSV file swallows no rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from rondo.data.sources import read_rows
from rondo.errors import ConfigError


def lines(*texts: str, columns: str = "text,label") -> str:
    return "\n".join([columns, *texts]) + "\n"


ROWS = [f"a film {i},{'neg' if i % 2 else 'pos'}" for i in range(8)]


@pytest.mark.parametrize(
    ("content", "first", "last"),
    [
        # A quote at the start of one text and at the end of another.
        (lines(*ROWS[:2], '"a film,pos', *ROWS[3:6], 'a film",neg', *ROWS[6:]), 4, 8),
        (lines('"a film,pos', 'a film",neg', *ROWS), 2, 3),
        (lines(*ROWS, '"a film,pos', 'a film",neg'), 10, 11),
        # In the last column, beside identifiers that differ in all rows.
        (lines('1,a,"x', '2,b,x"', "3,a,y", "4,b,z", columns="id,label,text"), 2, 3),
        # No row is left.
        (lines('"a,pos', "b,neg", 'c",pos'), 2, 4),
    ],
)
def test_rows_within_quotes_are_refused_by_their_lines(content: str, first: int, last: int, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(ConfigError) as caught:
        read_rows(tmp_path / "x.csv", "data.source")
    assert f"line {first}: a quote opens a text, so the {last - first + 1} rows up to line {last}," in str(caught.value)


@pytest.mark.parametrize(
    "text", ["Dear all,\nthanks", "one\ntwo, three\nfour", "neg, pos\nneither", 'he said ""so"",\nand left', "a\n\nb"]
)
def test_texts_of_several_lines_are_read(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(lines(*ROWS[:3], f'"{text}",pos', *ROWS[3:]))
    rows = read_rows(tmp_path / "x.csv", "data.source")
    assert len(rows) == 9
    assert rows[3] == {"text": text.replace('""', '"'), "label": "pos"}


def test_doubled_quotes_say_that_a_program_has_quoted_a_text(tmp_path: Path) -> None:
    """Each of its two lines has three columns, the first a known name and the second a known label."""
    texts = ["ann,fine,pos", 'ann,"it shows\n""no points"", again",neg', "ann,late,neg"]
    (tmp_path / "x.csv").write_text(lines(*texts, columns="who,text,label").replace("it shows", "it, shows"))
    rows = read_rows(tmp_path / "x.csv", "data.source")
    assert rows[1] == {"who": "ann", "text": 'it, shows\n"no points", again', "label": "neg"}
