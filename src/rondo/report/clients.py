"""The table of a run's clients: their rows and the scores of their models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from rondo.errors import visible
from rondo.report.terminal import score_cell

_SHOWN = 20
"""Most clients in the table; the worst are shown."""
_KINDS = {
    "clients": "global model",
    "personal": "personal",
    "fine_tuned": "fine-tuned",
    "validation": "validation",
}


def per_client(
    summary: Mapping[str, Any], partition: Mapping[str, Any], history: Sequence[Mapping[str, Any]] = ()
) -> dict[str, dict[str, Any]]:
    """Rows, scores and failures of each client, by its id: numbers of rows (``train``, ``validation``, ``test``), its
    ``rank`` where clients have ranks, ``failed_rounds``, and scores such as ``clients.accuracy``.

    ``summary``, ``partition``, ``history``: as in ``summary.json``, ``partition.json`` and ``metrics.jsonl``.
    """
    failed = [failure["client"] for record in history for failure in record["failed"]]
    result: dict[str, dict[str, Any]] = {}
    for name, entry in partition["clients"].items():
        counts = {key: entry[key] for key in ("train", "validation", "test", "rank") if key in entry}
        result[name] = {**counts, "failed_rounds": failed.count(name)}
    for kind in _kinds(summary):
        for name, scores in summary["after"][kind]["per_client"].items():
            result[name] |= {f"{kind}.{metric}": value for metric, value in scores.items()}
    return result


def clients_title(summary: Mapping[str, Any], rows: Sequence[object]) -> str:
    """The heading of the table, with the number of its ``rows``."""
    count = summary["clients"]
    if len(rows) == count:
        return f"{count} clients, the worst first"
    return f"the {len(rows)} worst of {count} clients (clients_frame() has all)"


def clients_columns(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns of the table; the first is text. Empty where no client has a score."""
    kinds, primary = _kinds(summary), summary["primary"]
    if not kinds:
        return ()
    title = summary["titles"].get(primary, primary)
    scores = [f"{title}, {_KINDS[kind]}" for kind in kinds]
    return ("client", "trained on", "scored on", *scores, *(["loss"] if primary != "loss" else []))


def clients_rows(summary: Mapping[str, Any], clients: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """The rows of the table, the worst client first. ``clients``: of :func:`per_client`."""
    kinds, primary = _kinds(summary), summary["primary"]
    if not kinds:
        return []
    first = f"{kinds[0]}.{primary}"
    spread = summary["after"][kinds[0]][primary]
    lower_is_worse = spread["mean"] is None or spread.get("worst_tenth", spread["mean"]) <= spread["mean"]

    def badness(name: str) -> tuple[bool, float, str]:
        value = clients[name].get(first)
        return (value is None, 0.0 if value is None else value if lower_is_worse else -value, name)

    rows = []
    for name in sorted(clients, key=badness)[:_SHOWN]:
        client = clients[name]
        values = [client.get(f"{kind}.{primary}") for kind in kinds]
        values += [client.get(f"{kinds[0]}.loss")] if primary != "loss" else []
        scored = client.get(f"{kinds[0]}.examples", "-")
        rows.append((visible(name), str(client["train"]), str(scored), *map(score_cell, values)))
    return rows


def clients_table(summary: Mapping[str, Any], clients: Mapping[str, Mapping[str, Any]]) -> Table | None:
    """The table for a terminal; None where no client has a score."""
    columns, rows = clients_columns(summary), clients_rows(summary, clients)
    if not columns:
        return None
    table = Table(title=clients_title(summary, rows), title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column == "client" else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _kinds(summary: Mapping[str, Any]) -> list[str]:
    """The kinds of scores that single clients have."""
    return [kind for kind in _KINDS if summary["after"].get(kind, {}).get("per_client")]
