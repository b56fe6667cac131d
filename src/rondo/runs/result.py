"""The result of a run, for programs and notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rondo.report.terminal import summary_rows, summary_title

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class RunResult:
    """A finished run. A notebook shows it as a table.

    ``history``: one dict per round, as in ``metrics.jsonl``.
    ``metrics``: the final scores by kind ("global", or "cold_start" and "personal"; "clients").
    ``summary``: everything in the final table.
    """

    history: list[dict[str, Any]]
    run_dir: Path
    metrics: dict[str, Any]
    summary: dict[str, Any]

    def to_frame(self) -> pandas.DataFrame:
        """One row per round. Scores are columns such as ``global.accuracy``; scores per client are left out."""
        import pandas

        # Scores come next to the loss, since a notebook leaves out the columns in the middle.
        scores = [_numbers("", record["scores"]) for record in self.history]
        rows = [_numbers("", record) | own for record, own in zip(self.history, scores, strict=True)]
        first = ["round", "loss", *(name for own in scores for name in own)]
        columns = dict.fromkeys([*first, *(name for row in rows for name in row)])
        return pandas.DataFrame(rows, columns=list(columns)).set_index("round")

    def _repr_html_(self) -> str:
        # A notebook's own style sets numbers and words alike to the right.
        left = ' style="text-align:left"'
        head = "".join(f"<th>{column}</th>" for column in ("", "before", "after"))
        rows = "".join(
            f"<tr><td{left}>{escape(label)}</td><td>{escape(before)}</td><td>{escape(after)}</td></tr>"
            for label, before, after in summary_rows(self.summary)
        )
        title = f"{escape(summary_title(self.summary))}<br>{escape(str(self.run_dir))}"
        caption = f"<caption{left}>{title}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"


def _numbers(path: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and texts of nested mappings, by key path."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            if key not in ("per_client", "scores"):
                flat |= _numbers(f"{path}{key}.", value)
        elif not isinstance(value, list):
            flat[f"{path}{key}"] = value
    return flat
