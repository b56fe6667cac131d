"""Progress of a run in a notebook: one output, replaced in place. It needs no widgets."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any

from rich.console import Console

from rondo.engine.transport import Observer, Phase
from rondo.errors import visible
from rondo.report.terminal import human_bytes
from rondo.runs.watching.progress import Speaker, measured

_REFRESH_SECONDS = 0.25
"""A notebook's server drops messages beyond some hundreds a second, and rounds can take milliseconds."""

# Colours are the notebook's own, so that the table is readable in light and dark themes.
_GRID = "display:grid;grid-template-columns:5em repeat(3,max-content);gap:0.2em 1em;align-items:center"


def in_notebook() -> bool:
    """Whether this process is a notebook's kernel."""
    return "ipykernel" in sys.modules and Console().is_jupyter


class NotebookBars(Speaker):
    """Two bars, as of :class:`rondo.runs.watching.progress.Bars`, drawn as HTML. The one of clients goes when the run
    ends, and with ``secret_turnout`` all else that would tell how many took part: the notebook may be handed on."""

    def __init__(self, title: str, rounds: int, *, secret_turnout: bool = False) -> None:
        super().__init__(set())
        self.secret_turnout = secret_turnout
        self.title, self.rounds, self.began = title, rounds, time.monotonic()
        self.lines: list[str] = []
        self.state, self.note, self.bytes = "", "", 0
        self.done = self.done_before = 0
        self.first_round: float | None = None
        self.over = False
        self.clients: int | None = None
        self.answered, self.answer = 0, ""

    def say(self, line: str) -> None:
        self.lines.append(visible(line))

    def phase(self, name: Phase) -> None:
        self.state = name

    def resumed(self, rounds: int, passed_over: Sequence[str]) -> None:
        super().resumed(rounds, passed_over)
        self.done = self.done_before = rounds

    def round_started(self, index: int, clients: int) -> None:
        if self.first_round is None:
            self.first_round = time.monotonic()
        self.clients, self.answered, self.answer = clients, 0, ""

    def client_done(self, client: str, loss: float | None) -> None:
        self._answered(client, "" if loss is None else f": loss {loss:.3f}")

    def client_failed(self, client: str) -> None:
        self._answered(client, ": failed")

    def _answered(self, client: str, what: str) -> None:
        self.answered += 1
        self.answer = f"{visible(client)}{what}"

    def round_done(self, record: Mapping[str, Any]) -> None:
        self.done += 1
        self.bytes += record["bytes_up"] + record["bytes_down"]
        sent = [] if self.secret_turnout else [human_bytes(self.bytes)]
        self.note = ", ".join([*measured(record), *sent])

    def ended(self, state: str) -> None:
        """Leave one bar, which says how the run ended."""
        self.state, self.clients, self.first_round, self.over = state, None, None, True

    def shown(self) -> dict[str, str]:
        """The state by MIME type. Another thread may call it during the run."""
        times = "" if self.secret_turnout and self.over else self._times()
        note = ", ".join(filter(None, [self.note, times]))
        rows = [(self.state, self.done, self.rounds, "rounds", note)]
        if (clients := self.clients) is not None:
            rows.append(("", self.answered, clients, "clients", self.answer))
        html = [f"<div>{escape(line)}</div>" for line in (self.title, *self.lines)]
        plain = [self.title, *self.lines]
        html.append(f'<div style="{_GRID}">')
        for state, done, of, unit, note in rows:
            html.append(
                f'<span>{state}</span><progress value="{done}" max="{of}" style="width:12em"></progress>'
                f"<span>{done} of {of} {unit}</span><span>{escape(note)}</span>"
            )
            plain.append(" ".join(filter(None, [state, f"{done} of {of} {unit}", note])))
        return {"text/html": "".join([*html, "</div>"]), "text/plain": "\n".join(plain)}

    def _times(self) -> str:
        """The time since the start, and an estimate of the time left once a round is done."""
        now, rounds, first = time.monotonic(), self.done - self.done_before, self.first_round
        text = _clock(now - self.began)
        if rounds and first is not None and self.done < self.rounds:
            text += f", about {_clock((now - first) / rounds * (self.rounds - self.done))} left"
        return text


def _clock(seconds: float) -> str:
    """75 s as "1:15", two hours as "2:00:00"."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def notebook_progress(title: str, rounds: int, *, secret_turnout: bool = False) -> Iterator[Observer]:
    """Show the progress of a run of ``rounds`` rounds under ``title`` in the output of the current cell.
    ``secret_turnout``: as of :class:`NotebookBars`."""
    from IPython.display import display

    bars, over = NotebookBars(title, rounds, secret_turnout=secret_turnout), threading.Event()
    last = bars.shown()
    handle = display(last, raw=True, display_id=True)

    def refresh() -> None:
        nonlocal last
        if (now := bars.shown()) != last:
            handle.update(now, raw=True)
            last = now

    def keep_fresh() -> None:
        while not over.wait(_REFRESH_SECONDS):
            refresh()

    thread = threading.Thread(target=keep_fresh, name="rondo-notebook", daemon=True)
    thread.start()
    end = "stopped"
    try:
        yield bars
        end = "done"
    finally:
        over.set()
        thread.join()
        bars.ended(end)
        refresh()
