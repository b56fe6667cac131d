"""Progress of a run: bars in a terminal and a notebook, else a line per round; in a program, lines to a logger."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from rondo.engine.transport import Observer, Phase
from rondo.errors import visible
from rondo.report.rows import account
from rondo.report.terminal import human_bytes

_WHERE = {"global": "test", "cold_start": "cold-start test", "personal": "personal"}
"""Kinds of scores, and their names in a line. The global model's at the clients are in the final table alone."""


def round_line(record: Mapping[str, Any], rounds: int) -> str:
    """A round in one line. ``record``: its line of ``metrics.jsonl``; ``rounds``: the number of rounds in the run."""
    parts = [f"{record['clients']} clients"]
    if record["failed"]:
        parts.append(f"{len(record['failed'])} failed")
    if record["skipped"]:
        whys = Counter(f"{f['reason']}: {f['detail']}" for f in record["failed"] if f.get("detail"))
        parts.append(f"skipped: {record['skipped']}" + "".join(f" ({why})" for why, _ in whys.most_common(1)))
    parts += measured(record)
    if "epsilon" in record:
        epsilon = "infinite" if record["epsilon"] is None else f"{record['epsilon']:.3g}"
        parts.append(f"epsilon {epsilon}" + ("" if record["epsilon_valid"] else " (not valid)"))
    parts.append(f"{human_bytes(record['bytes_up'])} up, {human_bytes(record['bytes_down'])} down")
    parts.append(f"{record['seconds']:.1f} s")
    return f"round {record['round'] + 1} of {rounds}: {', '.join(parts)}"


def measured(record: Mapping[str, Any]) -> list[str]:
    """The training loss, the primary scores and the measures of a round, where it has them."""
    parts = [f"training loss {record['loss']:.3f}"] if record["loss"] is not None else []
    for kind, where in _WHERE.items():
        # The first score is of the primary metric.
        metric, value = next(iter(record["scores"].get(kind, {}).items()), ("", None))
        if isinstance(value, Mapping):
            value = value["mean"]
        if value is not None:
            parts.append(f"{where} {record.get('titles', {}).get(metric, metric)} {value:.3f}")
    return parts + [f"{name} {value:.3g}" for name, value in record.get("measures", {}).items()]


_WORK = {
    "reading": "reading rows",
    "dealing": "dealing rows to clients",
    "opening": "opening the model's configuration",
    "tokenising": "tokenising rows",
    "loading": "loading the model",
    "trying": "trying the model on a few rows",
    "evaluating": "scoring the model",
    "training": "training",
}
"""The phases before the first round, in words."""


_PATIENCE = 2.0
"""Seconds after which a phase is said: most last less, and a fault of the input is to be read alone."""


class Preparing:
    """Says each phase before the first round that lasts for more than two seconds, by ``say``, while it lasts."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._over = False
        self._timer: threading.Timer | None = None

    def phase(self, name: Phase) -> None:
        """The run's work from now on."""
        self._cancel()
        if not self._over and name in _WORK:
            self._timer = threading.Timer(_PATIENCE, self._say, [_WORK[name]])
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        """The first round is done, or the run has ended."""
        self._over = True
        self._cancel()

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class Quiet(Observer):
    """Warns of rows of a single class and of damaged checkpoints, and says nothing else."""

    def prepared(self, partition: Mapping[str, Any]) -> None:
        for text in partition["warnings"]:
            warnings.warn(text, stacklevel=2)

    def resumed(self, rounds: int, passed_over: Sequence[str]) -> None:
        if passed_over:
            warnings.warn(f"going on after round {rounds}: {'; '.join(passed_over)}", stacklevel=2)


class Speaker(Observer):
    """Says the account of a run's rows. ``told``: lines about the rows of other runs that have been said already; more
    are added."""

    def __init__(self, told: set[str]) -> None:
        self.told = told

    @abstractmethod
    def say(self, line: str) -> None:
        """Show ``line``, in which names from the user's files may look like anything."""

    def prepared(self, partition: Mapping[str, Any]) -> None:
        for line in account(partition):
            if line not in self.told:
                self.say(line)
        self.told.update(account(partition))

    def resumed(self, rounds: int, passed_over: Sequence[str]) -> None:
        for reason in passed_over:
            self.say(f"damaged, not used: {reason}")
        self.say(f"going on after {rounds} committed rounds")


class Lines(Speaker):
    """A line per round on ``stream``, and one for each long phase before the first. ``name``: begins each line, where
    there are several runs."""

    def __init__(self, stream: IO[str], rounds: int, told: set[str], name: str | None = None) -> None:
        super().__init__(told)
        self.stream, self.rounds, self.name = stream, rounds, name
        self.preparing = Preparing(self.say)

    def phase(self, name: Phase) -> None:
        self.preparing.phase(name)

    def say(self, line: str) -> None:
        named = line if self.name is None else f"{self.name}: {line}"
        self.stream.write(visible(named) + "\n")  # in one piece: several processes may write to one stream
        self.stream.flush()

    def round_done(self, record: Mapping[str, Any]) -> None:
        self.preparing.end()
        self.say(round_line(record, self.rounds))


class Bars(Speaker):
    """Two bars: rounds, named after the current work, and clients of the current round."""

    def __init__(self, progress: Progress, rounds: int, told: set[str]) -> None:
        super().__init__(told)
        self.progress, self.bytes = progress, 0
        self.rounds = progress.add_task("", total=rounds, note="")
        self.clients = progress.add_task("clients", total=None, note="", visible=False)

    def phase(self, name: Phase) -> None:
        self.progress.update(self.rounds, description=name)

    def say(self, line: str) -> None:
        self.progress.console.print(visible(line), markup=False, emoji=False, highlight=False, soft_wrap=True)

    def resumed(self, rounds: int, passed_over: Sequence[str]) -> None:
        super().resumed(rounds, passed_over)
        self.progress.update(self.rounds, completed=rounds)

    def round_started(self, index: int, clients: int) -> None:
        self.progress.reset(self.clients, total=clients, note="", visible=True)

    def client_done(self, client: str, loss: float | None) -> None:
        self._answered(client, "" if loss is None else f"loss {loss:.3f}")

    def client_failed(self, client: str) -> None:
        self._answered(client, "failed")

    def _answered(self, client: str, what: str) -> None:
        self.progress.update(self.clients, advance=1, note=f"{visible(client)}  {what}".rstrip())

    def round_done(self, record: Mapping[str, Any]) -> None:
        self.bytes += record["bytes_up"] + record["bytes_down"]
        note = "  ".join([*measured(record), human_bytes(self.bytes)])
        self.progress.update(self.rounds, advance=1, note=note)


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    return "ipykernel" in sys.modules and Console().is_jupyter


def bars_in_notebook() -> bool:
    """Whether a notebook can show bars: rich draws them into a widget, which goes when the run ends."""
    return find_spec("ipywidgets") is not None


@contextmanager
def progress(
    rounds: int, console: Console | None = None, told: set[str] | None = None, name: str | None = None
) -> Iterator[Observer]:
    """Show the progress of a run of ``rounds`` rounds: bars in a terminal and a notebook, else a line per round, and
    before them the account of its rows.

    ``console``: stderr if not given.
    ``told``: lines that need not be said again; the lines said are added.
    ``name``: of the run, where there are several.
    """
    console, told = console or Console(stderr=True), told if told is not None else set()
    drawn = console.is_jupyter or (console.is_terminal and not console.is_dumb_terminal)
    if not drawn:  # without a cursor to move, no bar is drawn
        lines = Lines(console.file, rounds, told, name)
        try:
            yield lines
        finally:
            lines.preparing.end()
        return
    with Progress(
        *([] if name is None else [TextColumn(visible(name).replace("{", "{{").replace("}", "}}"), markup=False)]),
        TextColumn("{task.description:10}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    ) as bars:
        yield Bars(bars, rounds, told)


LOGGER = logging.getLogger("rondo")


class Logged(Quiet):
    """A line per round, and one for each long phase before the first. Remarks on the rows are warnings.

    ``name``: begins each line, where there are several runs.
    """

    def __init__(self, rounds: int, name: str | None = None) -> None:
        self.rounds, self.name, self.preparing = rounds, name, Preparing(self._say)

    def _say(self, line: str) -> None:
        LOGGER.info("%s", visible(line if self.name is None else f"{self.name}: {line}"))

    def phase(self, name: Phase) -> None:
        self.preparing.phase(name)

    def resumed(self, rounds: int, passed_over: Sequence[str]) -> None:
        super().resumed(rounds, passed_over)
        self._say(f"going on after {rounds} committed rounds")

    def round_done(self, record: Mapping[str, Any]) -> None:
        self.preparing.end()
        self._say(round_line(record, self.rounds))


@contextmanager
def logged(rounds: int, name: str | None = None) -> Iterator[Observer]:
    """Log the progress of a run of ``rounds`` rounds, to the standard logger ``rondo``.

    A program that has set up logging hears it at its level INFO. In one that has not, it goes to standard error while a
    run lasts, since a run of hours that says nothing looks like one that hangs;
    ``logging.getLogger("rondo").setLevel("WARNING")`` silences it.
    """
    observer = Logged(rounds, name)
    handler = None if LOGGER.hasHandlers() or LOGGER.level != logging.NOTSET else logging.StreamHandler()
    if handler is not None:
        LOGGER.addHandler(handler)
        LOGGER.setLevel(logging.INFO)
    try:
        yield observer
    finally:
        observer.preparing.end()
        if handler is not None:
            LOGGER.removeHandler(handler)
            LOGGER.setLevel(logging.NOTSET)
