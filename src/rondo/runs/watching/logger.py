"""Progress of a run in a program: lines to the standard logger ``rondo``.

A program that has set up logging hears them at its level INFO. In one that has not, they go to standard error while a
run lasts, since a run of hours that says nothing looks like one that hangs;
``logging.getLogger("rondo").setLevel("WARNING")`` silences them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rondo.engine.transport import Observer, Phase
from rondo.errors import visible
from rondo.runs.watching.progress import Preparing, Quiet, round_line

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
    """Log the progress of a run of ``rounds`` rounds."""
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
