"""Tables at the end of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import rich.table
from rich.console import Console

from rondo.errors import visible
from rondo.records.recorded import WITHHELD, promise, said
from rondo.report.table import Table


def plain_console(width: int | None = None) -> Console:
    """A console that prints text as it is, since names in it may look like markup. Without a terminal it has ``width``
    characters, for one line per row, so that grep finds it."""
    console = Console(markup=False, emoji=False, highlight=False)
    if width is not None and not console.is_terminal:
        console.width = width
    return console


def folded(*columns: str) -> rich.table.Table:
    """A table without rows yet or a frame, whose long cells are folded."""
    table = rich.table.Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def human_bytes(count: float) -> str:
    """1234567 as "1.2 MB" (powers of 1000)."""
    for unit, digits in (("B", 0), ("kB", 1), ("MB", 1), ("GB", 1)):
        if abs(round(count, digits)) < 1000:
            return f"{count:.{digits}f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


_KINDS = {
    "global": "global model, test set",
    "cold_start": "cold-start model, test set",
    "clients": "global model at the clients",
    "personal": "personal models at their clients",
    "fine_tuned": "fine-tuned models at their clients",
    "validation": "models at their clients, validation rows",
}


def score_cell(value: Any) -> str:
    """A score in a table; a dash for none."""
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The table at the end of a run: scores before and after, bytes, seconds."""
    early = ", stopped early" if summary["stopped_early"] else ""
    title = f"{summary['algorithm']}: {summary['rounds']} rounds, {summary['clients']} clients{early}"
    scores = list(score_rows(summary))
    return Table(title, ("", "before", "after"), [*scores, *_cost_rows(summary)], breaks=(len(scores),))


_SHOWN, _CHARACTERS = 5, 300


def samples_table(samples: Sequence[Mapping[str, str]]) -> Table:
    """The first answers that a run generated: the end of each prompt, and the beginning of each answer, with their
    line breaks. ``samples``: as in ``summary.json``."""
    more = f", the first {_SHOWN} of {len(samples)} in summary.json" if len(samples) > _SHOWN else ""
    columns, rows = ("prompt", "expected", "before", "after"), []
    for sample in samples[:_SHOWN]:
        prompt, *rest = ("\n".join(map(visible, sample[column].strip().splitlines())) for column in columns)
        rows.append((prompt[-_CHARACTERS:], *(text[:_CHARACTERS] for text in rest)))
    breaks = range(1, len(rows))
    return Table(f"answers before and after training{more}", columns, rows, words=None, breaks=breaks)


def adapted_table(title: str, shots: Mapping[int, Sequence[Any]]) -> Table:
    """The table of ``rondo adapt``. ``shots`` gives the scores of three models by the number of rows that they were
    fitted to: cold start, personal tensors fitted, trained alone."""
    columns = ("rows", "cold start", "personal part fitted", "trained alone")
    return Table(title, columns, [(str(rows), *map(score_cell, of)) for rows, of in shots.items()], words=())


def score_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """The scores: label, value before, value after."""
    before, after, primary = summary["before"], summary["after"], summary["primary"]
    titles = summary["titles"]
    title = titles.get(primary, primary)
    for kind, label in _KINDS.items():
        if kind in ("global", "cold_start"):
            for metric, value in after.get(kind, {}).items():
                if not isinstance(value, int):  # counts are no scores
                    earlier = before.get(kind, {}).get(metric)
                    yield f"{label}: {titles.get(metric, metric)}", score_cell(earlier), score_cell(value)
            for name, scores in after.get("more_tests", {}).items() if kind in after else ():
                earlier = before.get("more_tests", {}).get(name, {})
                for metric, value in scores.items():
                    if not isinstance(value, int):
                        shown = f"{label} {name}: {titles.get(metric, metric)}"
                        yield shown, score_cell(earlier.get(metric)), score_cell(value)
        elif kind in after:
            yield from _at_clients(label, title, after[kind][primary])
    generated = summary.get("generated") or {"after": {}}
    for metric, value in generated["after"].items():
        yield (
            f"{generated['answers']} generated answers: {metric}",
            score_cell(generated["before"][metric]),
            score_cell(value),
        )
    measures = summary.get("measures", {"before": {}, "after": {}})
    for name, value in measures["after"].items():
        yield name, f"{measures['before'][name]:.3g}" if name in measures["before"] else "-", f"{value:.3g}"
    best = summary["best"]
    if best is not None and best["rounds"] != summary["rounds"]:
        yield f"best, after round {best['rounds']}: {title}", "", score_cell(best[primary])
    yield from ((protected, "", bound) for protected, bound in said(summary))
    if "local_only" in summary:
        local = summary["local_only"]
        if local.get("test") is not None:
            yield f"each client alone, test set: mean {title}", "", score_cell(local["test"]["mean"])
        yield f"each client alone, own rows: mean {title}", "", score_cell(local["own"]["mean"])


def _at_clients(label: str, title: str, spread: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """A metric over clients: label, nothing before, value after."""
    without = f" (undefined at {spread['undefined']} more)" if spread["undefined"] else ""
    clients = f"{spread['clients']} clients{without}"
    yield f"{label}: mean {title}, {clients}", "", score_cell(spread["mean"])
    yield f"{label}: mean weighted by rows", "", score_cell(spread["weighted_mean"])
    yield f"{label}: deviation over clients", "", score_cell(spread["deviation"])
    yield f"{label}: worst tenth", "", score_cell(spread["worst_tenth"])


def _cost_rows(summary: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    if promise(summary).secret_turnout:
        yield f"bytes, seconds and failures are {WITHHELD}", "", "-"
        return
    traffic, seconds = summary["bytes"], summary["seconds"]
    yield "up, per client and round", "", human_bytes(traffic["up_per_client_round"])
    yield "down, per client and round", "", human_bytes(traffic["down_per_client_round"])
    yield "up, total", "", human_bytes(traffic["up"])
    down = f"{human_bytes(traffic['down'])} ({human_bytes(traffic['first_contact'])})"
    yield "down, total (first contact)", "", down
    times = f"{seconds['train']:.1f}, {seconds['evaluation']:.1f}, {seconds['all']:.1f}"
    yield "seconds: training, evaluation, total", "", times
    costs = summary["costs"]
    if costs["server_seconds_per_round"] is not None:
        server = f"{costs['server_seconds_per_round']:.2g}, {human_bytes(costs['server_memory_bytes'])}"
        yield "server, per aggregation: seconds, memory", "", server
    if costs["flops_per_client_round"] is not None:
        yield "FLOPs, per client and round", "", f"{costs['flops_per_client_round']:.3g}"
    if costs["process_memory_bytes"] is not None:
        yield "memory of the process, at most", "", human_bytes(costs["process_memory_bytes"])
    if summary["failed_clients"]:
        yield "clients that failed in a round", "", str(summary["failed_clients"])
