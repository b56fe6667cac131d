"""A run watched from its files, while another process carries it out. Imports no torch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rondo.errors import visible
from rondo.records import durable
from rondo.records.read import read
from rondo.records.recorded import Recorded
from rondo.report.page.scores import scores_of
from rondo.report.terminal import human_bytes, plain_console

_ROUNDS, _FAILURES, _WIDTH = 10, 5, 60
"""Rounds and failures shown, and the widest curve in characters."""
_BLOCKS = "▁▂▃▄▅▆▇█"


def title(run: Recorded, state: str) -> str:
    """A run and its state in a line, with the time that is left of one that goes on."""
    done, line = len(run.rounds), f"{run.name}: {run.config['algorithm']['name']}, seed {run.seed}, {state}"
    line += f", {done} of {run.planned} rounds"
    if state == "running" and 0 < done < run.planned:
        left = statistics.median(r["seconds"] for r in run.rounds[-_ROUNDS:]) * (run.planned - done)
        line += f", about {_time(left)} left"
    return visible(line)


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def columns(run: Recorded) -> list[str]:
    """The columns of :func:`cells`."""
    names = [name for name, _ in _shown(run)]
    private = ["epsilon"] if any("epsilon" in record for record in run.rounds) else []
    return ["round", "clients", "failed", *names, *private, "up", "down", "seconds"]


def cells(run: Recorded, record: dict[str, Any]) -> list[str]:
    """A round of a run as text."""
    done = record["round"] + 1
    scores = (f"{points[done]:.4g}" if done in points else "-" for _, points in _shown(run))
    private = []
    if any("epsilon" in other for other in run.rounds):
        epsilon = record.get("epsilon")
        valid = "" if record.get("epsilon_valid", True) else " (not valid)"
        private = [("infinite" if epsilon is None else f"{epsilon:.3g}") + valid]
    sent = (human_bytes(record[way]) for way in ("bytes_up", "bytes_down"))
    counts = (str(done), str(record["clients"]), str(len(record["failed"])))
    row = [*counts, *scores, *private, *sent, f"{record['seconds']:.1f}"]
    return row if not record["skipped"] else [*row[:-1], f"{row[-1]} (skipped: {visible(record['skipped'])})"]


def view(run: Recorded, state: str, *, blocks: bool = True) -> RenderableType:
    """All of it. ``blocks``: whether the terminal has the characters that a curve is drawn with."""
    table = Table(box=None, pad_edge=False)
    for column in columns(run):
        table.add_column(visible(column), justify="right")
    for record in run.rounds[-_ROUNDS:]:
        table.add_row(*cells(run, dict(record)))
    bar = Padding(ProgressBar(run.planned, len(run.rounds), width=_WIDTH), 0)  # alone it would not end its line
    parts: list[RenderableType] = [Text(title(run, state)), bar]
    for name, points in _shown(run):
        if blocks and len(points) > 1:
            values = list(points.values())
            parts.append(Text(f"{curve(values)} {visible(name)} {values[0]:.4g} to {values[-1]:.4g}"))
    parts += [table, *(Text(line) for line in _failures(run)), *(Text(line) for line in _sites(run))]
    return Group(*parts)


def curve(values: Sequence[float]) -> str:
    """Values as a row of blocks, the lowest flat and the highest full; of many, the last of each stretch."""
    count = min(_WIDTH, len(values))
    chosen = [values[(i + 1) * len(values) // count - 1] for i in range(count)]
    low, high = min(chosen), max(chosen)
    step = (high - low) / (len(_BLOCKS) - 1) or 1.0
    return "".join(_BLOCKS[round((value - low) / step)] for value in chosen)


def _shown(run: Recorded) -> Iterator[tuple[str, dict[int, float]]]:
    """The most telling score and the training loss, by rounds done."""
    found = [(score.name, dict(score.points(run))) for score in scores_of([run])]
    yield from found[:1]
    yield from ((name, points) for name, points in found[1:] if name == "training loss")


def _failures(run: Recorded) -> list[str]:
    lines = [
        f"round {record['round'] + 1}: {f['client']}: {f['reason']}: {f['detail']}"
        for record in run.rounds
        for f in record["failed"]
    ]
    return list(map(visible, lines[-_FAILURES:]))


def _sites(run: Recorded) -> Iterator[str]:
    for name, site in run.sites.items():
        if isinstance(site, dict):
            reason = f": {site['reason']}" if site.get("reason") else ""
            yield visible(f"{name}: {site.get('state', 'unknown')}{reason}")


State: TypeAlias = Literal["running", "finished", "not running"]

_SECONDS = 1.0
"""Between two looks at the files."""


def watch(run_dir: str | Path, sleep: Callable[[float], None] = time.sleep) -> State:
    """Show the run in ``run_dir`` until it ends: in a terminal as one view, else a line per round. Returns its last
    state. Nothing is written there. Raises :class:`ConfigError` if it is no run, or damaged."""
    console = plain_console()
    looks = _looks(Path(run_dir), sleep)
    state: State = "running"
    if not console.is_terminal or console.is_dumb_terminal:
        return _lines(looks)
    blocks = console.encoding.lower().startswith("utf")
    with Live(console=console, auto_refresh=False) as live:
        for run, state in looks:
            live.update(view(run, state, blocks=blocks), refresh=True)
    return state


def _lines(looks: Iterator[tuple[Recorded, State]]) -> State:
    """A line per round, and one for every state."""
    said, before = 0, ""
    state: State = "running"
    for run, state in looks:
        if state != before:
            print(title(run, state), flush=True)
        for record in run.rounds[said:]:
            pairs = zip(columns(run), cells(run, dict(record)), strict=True)
            print(visible(", ".join(f"{name} {cell}" for name, cell in pairs)), flush=True)
        said, before = len(run.rounds), state
    return state


def _looks(run_dir: Path, sleep: Callable[[float], None]) -> Iterator[tuple[Recorded, State]]:
    """The run and its state, again and again, until it does not run."""
    while True:
        run, state = _look(run_dir)
        yield run, state
        if state != "running":
            return
        sleep(_SECONDS)


def _look(run_dir: Path) -> tuple[Recorded, State]:
    first = read(run_dir)
    if first.summary is not None:
        return first, "finished"
    with durable.locked(run_dir) as idle:
        if not idle:
            return first, "running"
    last = read(run_dir)  # it may have ended between the two
    return last, "finished" if last.summary is not None else "not running"
