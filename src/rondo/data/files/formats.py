"""Rows in files: CSV, TSV, JSON, JSON lines, Parquet, Excel's and CoNLL's, packed by gzip or in shards, and folders of
``datasets``."""

from __future__ import annotations

import gzip
import io
import json
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from rondo.config.hub import POINTER, is_pointer
from rondo.data.files import excel
from rondo.data.files.columns import of_columns
from rondo.data.files.listing import OF_COLUMNS, SUFFIXES, suffix_of
from rondo.data.files.placed import Counted, Lines, PlacedRows
from rondo.data.files.room import OtherForm, Room, TextForm
from rondo.data.files.tables import Rows, dataset_rows, named_classes

_ROWS_FIELDS = ("data", "rows", "train", "examples", "records", "instances")
"""Fields in which a JSON object may have its rows."""


def saved_rows(folder: Path, room: Room) -> Rows:
    """All rows of a table that ``save_to_disk`` has written."""
    import datasets

    table = datasets.load_from_disk(str(folder))
    room.take(VALUE_BYTES * table.num_rows * table.num_columns + table.data.nbytes, str(folder))
    return dataset_rows(table)


def read_file(path: Path, room: Room, *, one_client: bool = False) -> PlacedRows:
    """All rows of a file, placed by their lines, or counted from 1. ``one_client``: whether it should have the rows of
    a single client, which LEAF's have not. Raises :class:`OtherForm`, ValueError with the fault of its
    content, and OSError."""
    suffix = suffix_of(path)
    if is_pointer(path):
        raise OtherForm(POINTER)
    if suffix == ".parquet":
        return PlacedRows(_parquet(path, room), Counted(str(path)))
    lines: array[int] | None
    if suffix == excel.SUFFIX:
        rows, lines = excel.of_workbook(path, room)
        return PlacedRows(rows, Lines(str(path), lines))
    text = _text(path, room)
    if suffix in (".csv", ".tsv"):
        rows, lines = _separated(io.StringIO(text, newline=""), suffix, room.form)
    elif suffix in OF_COLUMNS:
        rows, lines = of_columns(text, room.form.separator)
    else:
        rows, lines = _of_json(text, one_client) if suffix == ".json" else _of_lines(text)
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            place = f"line {lines[number]}" if lines is not None else f"row {number + 1}"
            raise ValueError(f"{place} is not an object with columns, but {row!r:.60}")
    return PlacedRows(rows, Lines(str(path), lines) if lines is not None else Counted(str(path)))


def _text(path: Path, room: Room) -> str:
    if path.suffix.lower() != ".gz":
        room.take(path.stat().st_size, str(path))
        return _decoded(path.read_bytes(), room.form)
    parts = []
    with gzip.open(path) as file:
        while part := file.read(2**20):
            room.take(len(part), str(path))
            parts.append(part)
    return _decoded(b"".join(parts), room.form)


def _decoded(content: bytes, form: TextForm) -> str:
    """``content`` as text: UTF-16 or UTF-32 if its first bytes are that, as of Excel's "Unicode text"; UTF-8 if its
    letters are that, for sites write their files by several programs; else as ``form`` says."""
    if not (wide := json.detect_encoding(content[:4])).startswith("utf-8"):  # zeros among them, or a mark
        try:
            return content.decode(wide)
        except UnicodeDecodeError as error:
            raise ValueError(f"as {wide} text: {error.reason}") from None
    with suppress(UnicodeDecodeError):
        if not content.isascii():
            return content.decode("utf-8-sig")
    return content.decode(form.codec)


def _of_json(text: str, one_client: bool) -> tuple[Rows, array[int] | None]:
    """The rows of a JSON file: a list, a list in the field of an object, a row a line, or LEAF's. Only rows of lines
    have the numbers of those."""
    try:
        tree: Any = json.loads(text)
    except json.JSONDecodeError:
        if text.lstrip().startswith("["):
            raise
        return _of_lines(text)
    if isinstance(tree, list):
        return tree, None
    if not isinstance(tree, dict):
        raise OtherForm("is neither a list of rows nor a row a line: save a list of objects")
    if _is_leaf(tree):
        if one_client:
            raise OtherForm(f"has the rows of {len(tree['users'])} clients, as LEAF writes them: {_NAME_LEAF}")
        return _leaf_rows(tree), None
    fields = [key for key, value in tree.items() if _are_rows(value)]
    if named := [key for key in fields if key in _ROWS_FIELDS]:
        return tree[named[0]], None
    columns = [value for value in tree.values() if isinstance(value, dict | list)]
    if len(columns) == len(tree) and len({len(value) for value in columns}) == 1 and not fields:
        raise OtherForm("has its rows by column: save a list of rows (of a data frame by orient='records')")
    if "\n" in text.strip() and fields:
        raise OtherForm(f"is one object, and rows seem to be in its field {fields[0]!r}: save that list as the file")
    return [tree], None


def _are_rows(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _of_lines(text: str) -> tuple[Rows, array[int]]:
    rows: Rows = []
    places = array("Q")
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise ValueError(f"line {number}: {error}") from None
            places.append(number)
    return rows, places


def _separated(file: TextIO, suffix: str, form: TextForm) -> tuple[Rows, array[int]]:
    """The rows of a CSV or TSV file, and the line on which each begins. TSV quotes are literal (GLUE) or CSV-style; the
    reading in which every row has the header's columns wins, and CSV-style if both fit with as many rows."""
    delimiter = _delimiter(file, form.separator or SUFFIXES[suffix])
    if delimiter != "\t" or form.separator is not None:
        return _quoted(file, delimiter)
    start = file.tell()
    lines = [line.rstrip("\r\n").split("\t") for line in file]
    numbers = array("Q", (number for number, line in enumerate(lines, 1 + (start > 0)) if any(line)))
    lines = [line for line in lines if any(line)]
    plain = len({len(line) for line in lines}) == 1
    while plain and not any(line[-1] for line in lines):  # columns without a name and cells
        lines = [line[:-1] for line in lines]
    file.seek(start)
    try:
        rows, places = _quoted(file, delimiter)
    except ValueError:
        if not plain:
            raise
        rows, places = [], array("Q")
    if plain and len(rows) != len(lines) - 1:
        names = _header(lines[0])
        return [dict(zip(names, line, strict=True)) for line in lines[1:]], numbers[1:]
    return rows, places


_SAYS = re.compile(r"\ufeff?sep=(.)[\r\n]*")
"""A first line by which Excel knows the separator."""


def _delimiter(file: TextIO, expected: str) -> str:
    """The separator of a file: the one that its first line says, which is then read, else ``expected``, else the only
    other one in a header that has no ``expected`` one. Sites write their files with programs of several countries."""
    header = file.readline()
    if (said := _SAYS.fullmatch(header)) is not None:
        return said[1]
    file.seek(0)
    others = [sign for sign in _SEPARATORS if sign in header]
    return others[0] if expected not in header and len(others) == 1 else expected


def _quoted(file: TextIO, delimiter: str) -> tuple[Rows, array[int]]:
    """The rows of a file whose texts may have quotes around them. Empty cells behind the last named column, and lines
    of empty cells, which Excel writes, are left out. Raises ValueError for any that is not a row."""
    import csv

    csv.field_size_limit(2**31 - 1)
    before = file.tell() > 0
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    rows: Rows = []
    places, ends = array("Q"), array("Q")
    names: list[str] = []
    line = 1 + before
    try:
        for values in reader:
            while len(values) > max(1, len(names)) and not values[-1]:
                values.pop()
            if not names:
                names = _header(values)
            elif values and len(values) != len(names):
                message = f"has not {len(names)} columns like the header (quote a text with {_plural(delimiter)})"
                raise ValueError(f"line {line} {message}")
            elif len(values) == 1 or any(values):
                places.append(line)
                ends.append(reader.line_num + before)
                rows.append(dict(zip(names, values, strict=True)))
            line = reader.line_num + 1 + before
    except csv.Error as error:
        raise ValueError(f"line {line}: {error}") from None
    if any(end > start for start, end in zip(places, ends, strict=True)):
        _refuse_swallowed(file, rows, list(zip(places, ends, strict=True)), delimiter)
    return rows, places


def _refuse_swallowed(file: TextIO, rows: Rows, spans: Sequence[tuple[int, int]], delimiter: str) -> None:
    """Raise ValueError for a text of several lines that are rows by themselves: a stray quote opened it, and another
    one, on a later row, closed it. Lines are rows if each has all columns and, in one of them, a value that a row of a
    single line has there, such as a label. A text with doubled quotes was quoted on purpose. ``spans``: the first and
    the last line of each row."""
    file.seek(0)
    lines = [line.rstrip("\r\n") for line in file]
    single = [row for row, (start, end) in zip(rows, spans, strict=True) if start == end]
    known = [{row[name] for row in single} - {""} for name in (rows[0] if rows else ())]
    for row, (start, end) in zip(rows, spans, strict=True):
        inside = [line.split(delimiter) for line in lines[start - 1 : end]]
        doubled = any("\n" in value and '"' in value for value in row.values())
        if (
            end > start
            and not doubled
            and all(
                len(values) == len(known)
                and any(v in there or not single for v, there in zip(values, known, strict=True))
                for values in inside
            )
        ):
            fate = f"so the {end - start + 1} rows up to line {end}, where it closes, would be one"
            mend = "double the quotes within texts, or remove it; if it is one text, save the file as JSON lines"
            raise ValueError(f"line {start}: a quote opens a text, {fate}: {mend}")


def _header(names: list[str]) -> list[str]:
    """The names of the columns. Raises ValueError for names that repeat."""
    if duplicates := sorted({n for n in names if names.count(n) > 1}):
        raise ValueError(f"two columns are called {duplicates[0]!r}")
    return names


_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}


def _plural(separator: str) -> str:
    return _SEPARATORS.get(separator, f"the separator {separator!r}")


VALUE_BYTES = 128
"""Memory of a value as a Python object, with its share of the row; the length of a text comes on top."""
_BATCH = 4096
"""Rows of Parquet that are read at a time."""


def _parquet(path: Path, room: Room) -> Rows:
    import pyarrow
    import pyarrow.parquet

    rows: Rows = []
    with pyarrow.parquet.ParquetFile(path) as file:
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        chunks = [group.column(i) for group in groups for i in range(group.num_columns)]
        room.take(VALUE_BYTES * sum(chunk.num_values for chunk in chunks), str(path))
        # A text is stored once for all rows that have it, so a row may take as much as a whole chunk of texts.
        largest = max((c.total_uncompressed_size for c in chunks if c.physical_type == "BYTE_ARRAY"), default=1)
        for batch in file.iter_batches(batch_size=max(1, min(_BATCH, room.left // (4 * max(1, largest))))):
            columns = [c.dictionary_decode() if isinstance(c, pyarrow.DictionaryArray) else c for c in batch.columns]
            room.take(sum(column.nbytes for column in columns), str(path))
            rows += pyarrow.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()
            del batch, columns  # before the next ones are read
        named_classes(rows, file.schema_arrow)
    pyarrow.default_memory_pool().release_unused()  # of 18 MB of pictures it kept 50 MB
    return rows


_NAME_LEAF = "name it, or its folder, in data.source, and set partition.kind = 'natural' and partition.column = 'user'"


def _is_leaf(tree: Mapping[str, Any]) -> bool:
    """Whether the object in a JSON file has LEAF's form."""
    return isinstance(tree.get("users"), list) and isinstance(tree.get("user_data"), dict)


def _leaf_rows(tree: Mapping[str, Any]) -> Rows:
    """The rows of ``users``, with the columns ``user``, ``x`` and ``y``. A list of floats (FEMNIST's pixels) is an
    array in ``x``; a list of texts (Sent140) has a column each, ``x0``, ``x1`` and so on. Raises ValueError with the
    fault of a user."""
    return [row for user in tree["users"] for row in _of_user(user, tree["user_data"].get(user))]


def _of_user(user: Any, data: Any) -> Iterator[dict[str, Any]]:
    x, y = (data.get(name) if isinstance(data, dict) else None for name in ("x", "y"))
    if not (isinstance(x, list) and isinstance(y, list)):
        raise ValueError(f"user_data has no lists x and y of user {user!r}")
    if len(x) != len(y):
        raise ValueError(f"user {user!r} has {len(x)} values in x and {len(y)} in y")
    for value, answer in zip(x, y, strict=True):
        yield {"user": user, **_columns(value), "y": answer}


def _columns(value: Any) -> dict[str, Any]:
    if isinstance(value, list) and any(isinstance(part, str) for part in value):
        return {f"x{place}": part for place, part in enumerate(value)}
    if isinstance(value, list) and any(isinstance(part, float) for part in value):
        return {"x": np.asarray(value, np.float32)}  # a quarter of the memory
    return {"x": value}
