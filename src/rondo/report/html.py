"""Tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

_LEFT = ' style="text-align:left"'
"""A notebook's own style sets numbers and words alike to the right."""


def html_table(title: Sequence[str], columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is text. ``title``: lines above it. Everything is escaped; line breaks are kept."""
    caption = f"<caption{_LEFT}>{'<br>'.join(map(escape, title))}</caption>"
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        f"<tr><td{_LEFT}>{_cell(first)}</td>{''.join(f'<td>{_cell(cell)}</td>' for cell in cells)}</tr>"
        for first, *cells in rows
    )
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(text: str) -> str:
    return escape(text).replace("\n", "<br>")
