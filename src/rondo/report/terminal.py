"""Output of a run to the terminal: progress bars while it trains (only in a terminal), and a table at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table


def human_bytes(count: float) -> str:
    """1234567 as "1.2 MB" (powers of 1000)."""
    for unit, digits in (("B", 0), ("kB", 1), ("MB", 1), ("GB", 1)):
        if abs(round(count, digits)) < 1000:
            return f"{count:.{digits}f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class TerminalProgress:
    """A :class:`rondo.engine.transport.Observer` with two bars: rounds, and clients of the current round."""

    def __init__(self, console: Console, rounds: int) -> None:
        self.bytes = 0
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.rounds = self.progress.add_task("rounds ", total=rounds, note="")
        self.clients = self.progress.add_task("clients", total=None, note="")

    def __enter__(self) -> TerminalProgress:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def resumed(self, rounds: int, passed_over: Sequence[str]) -> None:
        for reason in passed_over:
            self.progress.console.print(f"damaged, not used: {reason}", markup=False)
        self.progress.console.print(f"going on after {rounds} committed rounds")
        self.progress.update(self.rounds, completed=rounds)

    def round_started(self, index: int, clients: int) -> None:
        self.progress.reset(self.clients, total=clients, note="")

    def client_done(self, client: str, loss: float | None) -> None:
        note = f"{client}  " + (f"loss {loss:.3f}" if loss is not None else "failed")
        self.progress.update(self.clients, advance=1, note=note)

    def round_done(self, record: dict[str, Any]) -> None:
        self.bytes += record["bytes_up"] + record["bytes_down"]
        parts = [f"loss {record['loss']:.3f}" if record["loss"] is not None else ""]
        for kind in ("global", "cold_start"):
            # A task's first score is its primary one.
            metric, value = next(iter(record.get("scores", {}).get(kind, {}).items()), ("", None))
            if value is not None:
                parts.append(f"{metric} {value:.3f}")
        self.progress.update(self.rounds, advance=1, note="  ".join([*parts, human_bytes(self.bytes)]))


_KINDS = {
    "global": "global model, test set",
    "cold_start": "cold-start model, test set",
    "clients": "global model at the clients",
    "personal": "personal models at their clients",
}


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def comparison_table(content: Mapping[str, Any]) -> Table:
    """A comparison, one row per algorithm: means over seeds, with standard deviations for scores. ``content``: as in
    ``comparison.json``. A score names its model unless that is the global one."""
    seeds, primary = content["seeds"], content["primary"]
    over = (
        f"seed {seeds[0]}" if len(seeds) == 1 else f"mean ± standard deviation over seeds {', '.join(map(str, seeds))}"
    )
    table = Table(
        title=f"{content['rounds']} rounds, {content['clients']} clients; {over}",
        title_justify="left",
        caption="Scores are of the global model where no other is named; down includes the first contact.",
        caption_justify="left",
        box=None,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("algorithm", no_wrap=True)
    table.add_column("head", no_wrap=True)
    for column in (f"test {primary}", "at the clients", "up", "down", "first contact", "train s", "interference"):
        table.add_column(column, justify="right")
    for name, stats in content["algorithms"].items():
        up, down, first, seconds, interference = (
            stats[key]["mean"]
            for key in ("bytes_up", "bytes_down", "bytes_first_contact", "train_seconds", "interference")
        )
        table.add_row(
            name,
            stats["head"] or "-",
            _of_model(stats["test"]),
            _of_model(stats["own_rows"]),
            human_bytes(up),
            human_bytes(down),
            human_bytes(first),
            f"{seconds:.0f}",
            "-" if interference is None else f"{interference:.2g}",
        )
    return table


def _of_model(score: Mapping[str, Any]) -> str:
    """Mean over seeds, standard deviation if there is one, and model unless global: "0.750 ± 0.010 personal"."""
    if score["mean"] is None:
        return "-"
    deviation = "" if score["sd"] is None else f" ± {score['sd']:.3f}"
    model = "" if score["model"] == "global" else f" {score['model']}"
    return f"{score['mean']:.3f}{deviation}{model}"


def summary_table(summary: Mapping[str, Any]) -> Table:
    """The table at the end of a run: scores before and after, bytes, seconds."""
    table = Table(
        title=f"{summary['algorithm']}: {summary['rounds']} rounds, {summary['clients']} clients", title_justify="left"
    )
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    before, after = summary["before"], summary["after"]
    for kind, label in _KINDS.items():
        if kind in ("global", "cold_start"):
            for metric, value in after.get(kind, {}).items():
                if not isinstance(value, int):  # counts are no scores
                    table.add_row(f"{label}: {metric}", _number(before.get(kind, {}).get(metric)), _number(value))
        elif kind in after:
            metric = summary["primary"]
            table.add_row(f"{label}: mean {metric}", "", _number(after[kind][metric]["mean"]))
            table.add_row(f"{label}: worst tenth", "", _number(after[kind][metric]["worst_tenth"]))
    if "local_only" in summary:
        metric = summary["primary"]
        local = summary["local_only"]
        if local.get("test") is not None:
            table.add_row(f"each client alone, test set: mean {metric}", "", _number(local["test"]["mean"]))
        table.add_row(f"each client alone, own rows: mean {metric}", "", _number(local["own"]["mean"]))
    traffic = summary["bytes"]
    table.add_section()
    table.add_row("up, per client and round", "", human_bytes(traffic["up_per_client_round"]))
    table.add_row("down, per client and round", "", human_bytes(traffic["down_per_client_round"]))
    table.add_row("up, total", "", human_bytes(traffic["up"]))
    table.add_row(
        "down, total (first contact)",
        "",
        f"{human_bytes(traffic['down'])} ({human_bytes(traffic['first_contact'])})",
    )
    table.add_row("seconds: training, total", "", f"{summary['seconds']['train']:.1f}, {summary['seconds']['all']:.1f}")
    if summary["failed_clients"]:
        table.add_row("clients that failed in a round", "", str(summary["failed_clients"]))
    return table
