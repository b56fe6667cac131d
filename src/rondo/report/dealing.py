"""Tables of a run's rows, before it is started: rows and labels of each client, and the lengths of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rondo.errors import visible
from rondo.report.table import Table

_LABELS, _CLIENTS = 6, 40
"""Most columns of labels, and most rows of clients."""


def clients_table(partition: Mapping[str, Any]) -> Table:
    """Rows by client and split, and training and validation rows by label. ``partition``: as in ``partition.json``."""
    clients = partition["clients"]
    labels = _common(clients)
    splits = [split for split in ("train", "validation", "test") if any(c.get(split) for c in clients.values())]
    others = _others(clients, labels) > 0
    columns = ("client", *splits, *map(visible, labels), *(["other labels"] if others else []))
    shown = list(clients.items())[:_CLIENTS]
    rows = [(visible(name), *_cells(client, splits, labels, others=others)) for name, client in shown]
    if len(clients) > _CLIENTS:
        rows.append((f"and {len(clients) - _CLIENTS} more", *[""] * (len(columns) - 1)))
    total = {split: sum(c.get(split, 0) for c in clients.values()) for split in splits}
    counts: Counter[str] = Counter()
    for client in clients.values():
        counts.update(client["labels"] or {})
    all_rows = ("all", *_cells({**total, "labels": counts}, splits, labels, others=others))
    return Table(f"{len(clients)} clients", columns, [*rows, all_rows], breaks=(len(rows),), plain=True)


def _common(clients: Mapping[str, Any]) -> list[str]:
    """The labels with the most rows, the most common first."""
    counts: Counter[str] = Counter()
    for client in clients.values():
        counts.update(client["labels"] or {})
    return [label for label, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_LABELS]]


def _others(clients: Mapping[str, Any], labels: Sequence[str]) -> int:
    return len({label for client in clients.values() for label in client["labels"] or {}} - set(labels))


def _cells(client: Mapping[str, Any], splits: Sequence[str], labels: Sequence[str], *, others: bool) -> Iterator[str]:
    yield from (str(client.get(split, 0)) for split in splits)
    counts = client["labels"] or {}
    yield from (str(counts.get(label, 0)) for label in labels)
    if others:
        yield str(sum(counts.values()) - sum(counts.get(label, 0) for label in labels))


def lengths_line(what: str, tokens: Sequence[int], most: int) -> str:
    """The tokens of rows in a sentence. ``tokens``: of each row, as it is trained on; ``most``: ``task.max_length``."""
    ordered = sorted(tokens)
    middle, long = (ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in (0.5, 0.9))
    return f"{what}: {middle} tokens in the median row, {long} at 90 %, {ordered[-1]} in the longest, of {most} at most"
