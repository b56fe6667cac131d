"""CoNLL's files of columns: a line per token, and an empty line behind each sentence."""

from __future__ import annotations

import gzip
import re
import zlib
from array import array
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import IO

from rondo.data.files.tables import Rows

_DOCUMENT = "-DOCSTART-"
"""The token that begins a document in CoNLL-2003. It is no sentence."""


def of_columns(text: str, separator: str | None) -> tuple[Rows, array[int]]:
    """The rows of a CoNLL file of columns, which has a line per token and an empty line behind each sentence: a row a
    sentence, and the line on which each begins. ``tokens`` are in the first column,
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


_TAG = re.compile(r"O|[BIESLU]-\S+")
_HEAD = 2**16
"""Bytes at the beginning of a file that tell whether it has columns."""


def has_columns(path: Path) -> bool:
    """Whether most lines of a text file begin with a token and end with a tag such as ``O`` or ``B-PER``."""
    if not path.is_file():
        return False
    with suppress(OSError, EOFError, zlib.error), _opened(path) as file:
        lines = [line.split() for line in file.read(_HEAD).decode(errors="replace").split("\n")]
        lines = [line for line in lines if line and not line[0].startswith("#")]
        return 2 * sum(len(line) > 1 and _TAG.fullmatch(line[-1]) is not None for line in lines) > len(lines)
    return False


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]
