"""A comparison for papers and spreadsheets: a LaTeX table and a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from rondo.report.terminal import comparison_columns, comparison_notes, comparison_rows, comparison_title
from rondo.study.compare.over_seeds import run_rows

_SPECIAL = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": "$<$",
    ">": "$>$",
}


def runs_csv(runs: Sequence[Mapping[str, Any]]) -> str:
    """A row per run. ``runs``: as in ``comparison.json``, at least one."""
    rows = run_rows(runs)
    file = io.StringIO()
    writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()


def comparison_latex(content: Mapping[str, Any]) -> str:
    """The table of means, with standard deviations of scores, for LaTeX with the package booktabs. ``content``: as in
    ``comparison.json``."""
    columns = comparison_columns(content)
    lines = [f"% {' '.join(text.split())}" for text in (comparison_title(content), *comparison_notes(content))]
    lines += [rf"\begin{{tabular}}{{ll{'r' * (len(columns) - 2)}}}"]
    lines += [r"\toprule", _row(columns), r"\midrule", *map(_row, comparison_rows(content)), r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}"]) + "\n"


def _row(cells: Sequence[str]) -> str:
    escaped = ("".join(_SPECIAL.get(letter, letter) for letter in " ".join(cell.split())) for cell in cells)
    return " & ".join(escaped) + r" \\"
