"""The table of a run's clients: their rows and the scores of their models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rondo.errors import visible
from rondo.report.table import Table
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


def clients_table(summary: Mapping[str, Any], clients: Mapping[str, Mapping[str, Any]]) -> Table | None:
    """The table, the worst client first; None where no client has a score. ``clients``: of :func:`per_client`."""
    kinds, primary = _kinds(summary), summary["primary"]
    if not kinds:
        return None
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
    title = summary["titles"].get(primary, primary)
    scores = [f"{title}, {_KINDS[kind]}" for kind in kinds]
    columns = ("client", "trained on", "scored on", *scores, *(["loss"] if primary != "loss" else []))
    count = summary["clients"]
    worst = f"the {len(rows)} worst of {count} clients (clients_frame() has all)"
    return Table(f"{count} clients, the worst first" if len(rows) == count else worst, columns, rows)


def _kinds(summary: Mapping[str, Any]) -> list[str]:
    """The kinds of scores that single clients have."""
    return [kind for kind in _KINDS if summary["after"].get(kind, {}).get("per_client")]
