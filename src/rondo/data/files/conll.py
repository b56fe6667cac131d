"""CoNLL's files of columns: a line per token, its tag in the last column, and an empty line behind each sentence."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import groupby

from rondo.data.files.tables import Rows

SUFFIXES = (".conll", ".bio", ".iob", ".iob2", ".bioes")
_DOCUMENT = "-DOCSTART-"
"""The token that begins a document in CoNLL-2003. It is no sentence."""


def of_columns(text: str, separator: str | None) -> tuple[Rows, array[int]]:
    """The rows of a file, a sentence each, and the line on which each begins. ``tokens`` are in the first column,
    ``tags`` in the last one, and what is between them is in ``column2`` and so on.

    ``separator``: of the columns; None is a tab in lines that have one, else blanks.

    Lines before a sentence that begin with ``#`` and have other columns are comments. Raises ValueError with the line
    for one of other columns than its sentence.
    """
    rows: Rows = []
    places = array("Q")
    for number, lines in _sentences(text, separator):
        width = len(lines[-1])
        comments = next((i for i, line in enumerate(lines) if not _is_comment(line, width)), 0)
        number, lines = number + comments, lines[comments:]
        for place, line in enumerate(lines):
            if len(line) != width or width < 2:
                wanted = f"{width} as its sentence's last line" if width > 1 else "a token and a tag"
                raise ValueError(f"line {number + place} has {len(line)} columns, not {wanted}")
        if lines[0][0] != _DOCUMENT:
            columns = list(zip(*lines, strict=True))
            names = ("tokens", *(f"column{i}" for i in range(2, width)), "tags")
            rows.append({name: list(column) for name, column in zip(names, columns, strict=True)})
            places.append(number)
    return rows, places


def _sentences(text: str, separator: str | None) -> Iterator[tuple[int, list[list[str]]]]:
    """The lines of each sentence, in columns, and the number of the first one."""
    numbered = enumerate((line.rstrip("\r") for line in text.split("\n")), 1)
    for filled, group in groupby(numbered, lambda pair: bool(pair[1].strip())):
        if filled:
            lines = list(group)
            yield lines[0][0], [line.split(separator or ("\t" if "\t" in line else None)) for _, line in lines]


def _is_comment(line: list[str], width: int) -> bool:
    return line[0].startswith("#") and len(line) != width
