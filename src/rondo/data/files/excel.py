"""The rows of an Excel file (.xlsx), by ``openpyxl``."""

from __future__ import annotations

import zipfile
from array import array
from collections.abc import Sequence
from datetime import date, datetime, time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rondo.config import packages
from rondo.data.files.room import OtherForm, Room
from rondo.data.files.tables import Rows

SUFFIX = ".xlsx"


def of_workbook(path: Path, room: Room) -> tuple[Rows, array[int]]:
    """The rows of the only sheet that has some, and the number of each in the sheet, from 1, where the header is the
    first. Formulas have the values that Excel saved. Rows of empty cells, and columns without a name and cells, are
    left out. Raises :class:`OtherForm`, and
    ValueError with the fault of its content."""
    if find_spec("openpyxl") is None:
        raise OtherForm(f"{packages.missing('openpyxl')}, or save it as CSV")
    import openpyxl

    with zipfile.ZipFile(path) as parts:  # a few kilobytes may expand to gigabytes
        room.take(sum(part.file_size for part in parts.infolist()), str(path))
    book = openpyxl.load_workbook(path, read_only=True, data_only=True)
    try:
        sheets = {sheet.title: _filled(sheet, path, room) for sheet in book.worksheets}
    finally:
        book.close()
    filled = {title: rows for title, rows in sheets.items() if len(rows) > 1}
    if len(filled) > 1:
        names = ", ".join(map(repr, list(filled)[:5]))
        raise OtherForm(f"has {len(filled)} sheets with rows ({names}): save each as a file of its own")
    return _rows(next(iter(filled.values()), []))


def _filled(sheet: Any, path: Path, room: Room) -> list[tuple[int, Sequence[Any]]]:
    """The rows of a sheet with a cell that is not empty, and their numbers."""
    found = []
    for number, cells in enumerate(sheet.iter_rows(values_only=True), 1):
        if any(cell not in (None, "") for cell in cells):
            room.take(64 * len(cells), str(path))
            found.append((number, cells))
    return found


def _rows(lines: list[tuple[int, Sequence[Any]]]) -> tuple[Rows, array[int]]:
    header, *rest = lines or [(1, ())]
    names = ["" if cell is None else str(cell) for cell in header[1]]
    named = [place for place, name in enumerate(names) if name]
    if twice := next((name for name in names if name and names.count(name) > 1), None):
        raise ValueError(f"two columns are called {twice!r}")
    rows: Rows = []
    for number, cells in rest:
        for place, cell in enumerate(cells):
            if cell not in (None, "") and (place >= len(names) or not names[place]):
                raise ValueError(f"row {number} has {cell!r:.40} in a column without a name")
        rows.append({names[place]: _plain(cells[place]) if place < len(cells) else None for place in named})
    return rows, array("Q", (number for number, _ in rest))


def _plain(cell: Any) -> Any:
    """A date as text, as a CSV file would have it."""
    return cell.isoformat(*" " if isinstance(cell, datetime) else "") if isinstance(cell, date | time) else cell
