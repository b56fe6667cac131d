"""A table, for terminals, notebooks, pages and papers."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import rich.table

from rondo.errors import visible

_LEFT = ' style="text-align:left"'
"""A notebook's own style sets numbers and words alike to the right."""
_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": "$<$",
    ">": "$>$",
}

_MINUS = re.compile(r"(?<![\w.])-(?=\d)")
"""A minus sign, which is no hyphen of a name and no exponent's."""


@dataclass(frozen=True)
class Table:
    """Columns and rows of text under a title.

    - ``notes``: sentences about it.
    - ``words``: the columns that are text, set to the left; the first is. None: all are.
    - ``breaks``: numbers of rows after which a line is drawn.
    - ``folded``: of a page, the words that open it.
    - ``plain``: whether a terminal shows it without a frame.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    words: Collection[int] | None = (0,)
    breaks: Collection[int] = ()
    folded: str = ""
    plain: bool = False

    def is_word(self, place: int) -> bool:
        return self.words is None or place in self.words

    def __rich__(self) -> rich.table.Table:
        """For a terminal."""
        look: dict[str, Any] = {"box": None, "pad_edge": False, "collapse_padding": True} if self.plain else {}
        shown = rich.table.Table(title=self.title, title_justify="left", caption_justify="left", **look)
        shown.caption = "\n".join(map(visible, self.notes)) or None
        for place, column in enumerate(self.columns):
            fold, word = "fold" if self.words is None else "ellipsis", self.is_word(place)
            options: dict[str, Any] = {"justify": "left" if word else "right", "overflow": fold}
            shown.add_column(column, no_wrap=word and self.plain, **options)
        for count, row in enumerate(self.rows, 1):
            shown.add_row(*row, end_section=count in self.breaks)
        return shown

    def html(self, *above: str) -> str:
        """For a notebook, with lines ``above`` the notes. Everything is escaped; line breaks are kept."""
        caption = f"<caption{_LEFT}>{'<br>'.join(map(escape, (self.title, *above, *self.notes)))}</caption>"
        head = "".join(f"<th>{escape(column)}</th>" for column in self.columns)
        body = ""
        for row in self.rows:
            first, *cells = (escape(cell).replace("\n", "<br>") for cell in row)
            body += f"<tr><td{_LEFT}>{first}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def latex(self) -> str:
        """For LaTeX with the package booktabs; title and notes are remarks."""

        def line(cells: Sequence[str]) -> str:
            escaped = ("".join(_LATEX.get(letter, letter) for letter in " ".join(cell.split())) for cell in cells)
            return " & ".join(_MINUS.sub("$-$", cell) for cell in escaped) + r" \\"

        lines = [f"% {' '.join(text.split())}" for text in (self.title, *self.notes)]
        lines += [rf"\begin{{tabular}}{{{''.join('rl'[self.is_word(i)] for i in range(len(self.columns)))}}}"]
        lines += [r"\toprule", line(self.columns), r"\midrule", *map(line, self.rows), r"\bottomrule"]
        return "\n".join([*lines, r"\end{tabular}"]) + "\n"
