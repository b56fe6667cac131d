"""Charts and tables of single clients: scores from the worst to the best, and the rows of each."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rondo.errors import first_of
from rondo.records.curve import OWN_KINDS, Spread
from rondo.records.recorded import Recorded
from rondo.report.numbers import number, share_interval
from rondo.report.page.charts import Chart, Line, finite, is_share
from rondo.report.page.groups import Group
from rondo.report.table import Table

_POINTS, _ROWS, _BARS = 200, 60, 200
"""Most points of a line over clients, rows of a table of clients, and clients with a bar each."""
_LABELS, _PARTITIONS = 14, 3
"""Most labels with a colour of their own, and most partitions that are drawn."""


def client_charts(groups: Sequence[Group]) -> Iterator[Chart]:
    """The primary score of each client from the worst to the best, a line per group."""
    lines, title, primary = [], "", ""
    for group in groups:
        of_runs = [(run, scores) for run in group.runs if (scores := final_scores(run))]
        curves = [sorted(scores.values(), reverse=not run.higher_is_better) for run, scores in of_runs]
        if not curves:
            continue
        title, primary = title or _title(group.runs[0]), group.runs[0].primary or ""
        count = min(_POINTS, max(map(len, curves)))
        if count == 1:  # the table has the one client
            continue
        columns = list(zip(*(_resampled(curve, count) for curve in curves), strict=True))
        places = [100 * (i + 1) / count for i in range(count)]
        lines.append(Line.of(group.label, group.style, places, list(map(Spread.of, columns))))
    if lines:
        axis = "clients in %, in the order of their scores"
        note = "On the left: the worst tenth of the clients."
        yield Chart(f"{title} of each client's model", axis, title, lines, share=is_share(primary), note=note)


def _resampled(values: Sequence[float], count: int) -> list[float]:
    """``count`` of the sorted values, evenly spaced."""
    return [values[round(i * (len(values) - 1) / max(1, count - 1))] for i in range(count)]


def final_scores(run: Recorded) -> dict[str, float]:
    """The primary score of each client's model after the last round that has them, by client."""
    values = {name: finite(own.get(run.primary or "")) for name, own in _per_client(run).items()}
    return {name: value for name, value in values.items() if value is not None}


def scored_rows(run: Recorded) -> dict[str, int]:
    """The number of rows that each client's score is of."""
    return {name: own["examples"] for name, own in _per_client(run).items() if isinstance(own.get("examples"), int)}


def _per_client(run: Recorded) -> Mapping[str, Mapping[str, Any]]:
    for record in reversed(run.rounds):
        for kind in OWN_KINDS:
            of_clients = record["scores"].get(kind, {}).get("per_client")
            if isinstance(of_clients, Mapping):
                return {name: own for name, own in of_clients.items() if isinstance(own, Mapping)}
    return {}


def _title(run: Recorded) -> str:
    return run.titles.get(run.primary or "", run.primary or "score")


def clients_table(groups: Sequence[Group]) -> Table | None:
    """A row per client, the worst of the first group first: its rows, and its score in each group."""
    scores = [[final_scores(run) for run in group.runs] for group in groups]
    of_group = [
        {name: statistics.fmean(s[name] for s in several if name in s) for name in {n for s in several for n in s}}
        for several in scores
    ]
    names = {name for values in of_group for name in values}
    if not names:
        return None
    first = next(values for values in of_group if values)
    sign = 1 if groups[0].runs[0].higher_is_better else -1
    ordered = sorted(names, key=lambda name: (sign * first[name] if name in first else float("inf"), name))
    shown = groups[0].runs[0]
    rows_of, asked = shown.partition.get("clients", {}), _asked(groups)
    share = shown.primary == "accuracy"

    def cell(name: str, value: float | None) -> str:
        if value is None or not share or not asked.get(name):
            return number(value)
        return f"{value:.2f} [{', '.join(f'{end:.2f}' for end in share_interval(value, asked[name]))}]"

    rows = [
        [
            name,
            number(rows_of.get(name, {}).get("train")),
            number(asked.get(name)),
            *(cell(name, values.get(name)) for values in of_group),
        ]
        for name in ordered[:_ROWS]
    ]
    means = ", means over seeds" if any(len(group.runs) > 1 for group in groups) else ""
    more = f"; the {_ROWS} worst of {len(ordered)}" if len(ordered) > _ROWS else ""
    why = ". In brackets: the 95 % interval that so few scored rows leave (Wilson)" if share else ""
    title = f"{_title(shown)} of each client's model{means}, the worst first{more}{why}"
    return Table(title, ("client", "training rows", "scored rows", *(group.label for group in groups)), rows)


def _asked(groups: Sequence[Group]) -> dict[str, int]:
    """The scored rows of each client, the fewest of all runs."""
    found: dict[str, int] = {}
    for run in (run for group in groups for run in group.runs):
        for name, rows in scored_rows(run).items():
            found[name] = min(rows, found.get(name, rows))
    return found


def partitions(groups: Sequence[Group]) -> Iterator[Chart]:
    """The rows of each client, a chart per partition: seeds may deal rows otherwise. None of private runs."""
    found: dict[str, tuple[Mapping[str, Any], list[str]]] = {}
    for run in (run for group in groups for run in group.runs):
        clients = run.partition.get("clients")
        if clients and not run.private:
            key = json.dumps(clients, sort_keys=True)
            found.setdefault(key, (clients, []))[1].append(run.name)
    for clients, runs in list(found.values())[:_PARTITIONS]:
        yield _partition(clients, f"{len(clients)} clients" + (f" ({first_of(runs, 3)})" if len(found) > 1 else ""))


def _partition(clients: Mapping[str, Any], title: str) -> Chart:
    sizes = {name: c["train"] + c.get("validation", 0) for name, c in clients.items()}
    counts: Counter[str] = Counter()
    for client in clients.values():
        counts.update(client.get("labels") or {})
    if any(sum((c.get("labels") or {}).values()) > sizes[name] for name, c in clients.items()):
        counts.clear()  # rows with several labels: a stack would be higher than the rows
    if len(clients) > _BARS:
        ordered = sorted(sizes.values())
        y = _resampled(list(map(float, ordered)), _POINTS)
        x = [100 * (i + 1) / len(y) for i in range(len(y))]
        return Chart(title, "clients in %, in the order of their rows", "rows", [Line("rows", 0, x, y)])
    shown = [label for label, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_LABELS]]
    parts = {label: [(c.get("labels") or {}).get(label, 0) for c in clients.values()] for label in shown}
    rest = [size - sum(part[i] for part in parts.values()) for i, size in enumerate(sizes.values())]
    if any(rest):
        parts["other labels" if counts else "rows"] = rest
    places = list(range(len(clients)))
    styles = [*range(len(shown)), -1 if shown else 0]
    lines = [Line(label, style, places, part) for style, (label, part) in zip(styles, parts.items(), strict=False)]
    note = "Rows to train on and to validate with, by label." if counts else "Rows to train on and to validate with."
    return Chart(title, "client", "rows", lines, form="bars", names=list(clients), note=note)
