"""The result of a run, for programs and notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rondo.errors import ConfigError
from rondo.records.directory import RunDirectory
from rondo.report.clients import clients_table, per_client
from rondo.report.terminal import samples_table, summary_table

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class RunResult:
    """A finished run. A notebook shows it as a table.

    ``history``: one dict per round, as in ``metrics.jsonl``.
    ``metrics``: the final scores by kind ("global", or "cold_start" and "personal"; "clients").
    ``summary``: everything in the final table.

    >>> result = rondo.run(digits, run_dir="runs/digits", resume=True)
    >>> sorted(result.metrics)
    ['cold_start', 'personal']
    >>> result.to_frame()[["loss", "bytes_up"]].shape
    (2, 2)
    >>> list(result.clients_frame().index)
    ['client-0', 'client-1', 'client-2', 'client-3']
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

    def clients(self) -> dict[str, dict[str, Any]]:
        """Rows, scores and failures of each client, by its id: see :func:`rondo.report.clients.per_client`."""
        return per_client(self.summary, RunDirectory(self.run_dir).read("partition.json"), self.history)

    def clients_frame(self) -> pandas.DataFrame:
        """One row per client, by its id: its numbers of ``train``, ``validation`` and ``test`` rows, its ``rank`` where
        clients have ranks, ``failed_rounds``, and its scores after the last round, such as ``clients.accuracy`` (the
        global model on the client's own rows), ``personal.accuracy`` or ``fine_tuned.accuracy``. Clients without rows
        of their own, and runs whose clients are not scored, have no scores."""
        import pandas

        return pandas.DataFrame.from_dict(self.clients(), orient="index").rename_axis("client")

    def _repr_html_(self) -> str:
        table = summary_table(self.summary).html(str(self.run_dir))
        with suppress(ConfigError):  # the run directory may be gone by now
            if (clients := clients_table(self.summary, self.clients())) is not None:
                table += clients.html()
        if answered := self.summary.get("samples"):
            table += samples_table(answered).html()
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
