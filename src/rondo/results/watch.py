"""A run watched from its files, while another process carries it out. Imports no torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from rich.live import Live

from rondo.errors import visible
from rondo.records import durable
from rondo.records.read import read
from rondo.records.recorded import Recorded
from rondo.report.terminal import plain_console
from rondo.report.watched import cells, columns, title, view

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
