"""The result of a run, for programs and notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rondo.report.html import html_table
from rondo.report.terminal import SAMPLE_COLUMNS, sample_rows, samples_title, summary_rows, summary_title

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
        rows = [_numbers("", record) | numbers for record, numbers in zip(self.history, scores, strict=True)]
        first = ["round", "loss", *(name for numbers in scores for name in numbers)]
        columns = dict.fromkeys([*first, *(name for row in rows for name in row)])
        return pandas.DataFrame(rows, columns=list(columns)).set_index("round")

    def _repr_html_(self) -> str:
        title = (summary_title(self.summary), str(self.run_dir))
        table = html_table(title, ("", "before", "after"), summary_rows(self.summary))
        if answered := self.summary.get("samples"):
            table += html_table([samples_title(answered)], SAMPLE_COLUMNS, sample_rows(answered))
        return table


def _numbers(path: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers and texts of nested mappings, by key path."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            if key not in ("per_client", "scores", "titles"):
                flat |= _numbers(f"{path}{key}.", value)
        elif not isinstance(value, list):
            flat[f"{path}{key}"] = value
    return flat
