"""Progress of a run for people: bars in a terminal or a notebook, else a line per round."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rondo.engine.transport import Observer, Phase
from rondo.report.terminal import human_bytes


def round_line(record: Mapping[str, Any], rounds: int) -> str:
    """A round in one line. ``record``: its line of ``metrics.jsonl``; ``rounds``: the number of rounds in the run."""
    parts = [f"{record['clients']} clients"]
    if record["failed"]:
        parts.append(f"{len(record['failed'])} failed")
    if record["skipped"]:
        parts.append(f"skipped: {record['skipped']}")
    parts += _measured(record)
    parts.append(f"{human_bytes(record['bytes_up'])} up, {human_bytes(record['bytes_down'])} down")
    parts.append(f"{record['seconds']:.1f} s")
    return f"round {record['round'] + 1} of {rounds}: {', '.join(parts)}"


def _measured(record: Mapping[str, Any]) -> list[str]:
    """The training loss and the primary score of a round, where it has them."""
    parts = [f"loss {record['loss']:.3f}"] if record["loss"] is not None else []
    for kind in ("global", "cold_start"):
        # A task's first score is its primary one.
        metric, value = next(iter(record["scores"].get(kind, {}).items()), ("", None))
        if value is not None:
            parts.append(f"{metric} {value:.3f}")
    return parts


class Quiet(Observer):
    """Says nothing but that a checkpoint is damaged."""

    def resumed(self, rounds: int, passed_over: Sequence[str]) -> None:
        if passed_over:
            warnings.warn(f"going on after round {rounds}: {'; '.join(passed_over)}", stacklevel=2)


class Lines(Observer):
    """A line per round on ``stream``."""

    def __init__(self, stream: IO[str], rounds: int) -> None:
        self.stream, self.rounds = stream, rounds

    def resumed(self, rounds: int, passed_over: Sequence[str]) -> None:
        for reason in passed_over:
            self._print(f"damaged, not used: {reason}")
        self._print(f"going on after {rounds} committed rounds")

    def round_done(self, record: Mapping[str, Any]) -> None:
        self._print(round_line(record, self.rounds))

    def _print(self, line: str) -> None:
        print(line, file=self.stream, flush=True)


class Bars(Observer):
    """Two bars: rounds, named after the current work, and clients of the current round."""

    def __init__(self, progress: Progress, rounds: int) -> None:
        self.progress, self.bytes = progress, 0
        self.rounds = progress.add_task("", total=rounds, note="")
        self.clients = progress.add_task("clients", total=None, note="")

    def phase(self, name: Phase) -> None:
        self.progress.update(self.rounds, description=name)

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

    def round_done(self, record: Mapping[str, Any]) -> None:
        self.bytes += record["bytes_up"] + record["bytes_down"]
        note = "  ".join([*_measured(record), human_bytes(self.bytes)])
        self.progress.update(self.rounds, advance=1, note=note)


@contextmanager
def progress(rounds: int, console: Console | None = None) -> Iterator[Observer]:
    """Show the progress of a run of ``rounds`` rounds: bars in a terminal or a notebook that can draw them, else a line
    per round. ``console`` is stderr if not given."""
    console = console or Console(stderr=True)
    if not (console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)):
        yield Lines(console.file, rounds)
        return
    with Progress(
        TextColumn("{task.description:10}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bars:
        yield Bars(bars, rounds)


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    return "ipykernel" in sys.modules and Console().is_jupyter
