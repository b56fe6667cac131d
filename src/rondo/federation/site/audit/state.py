"""A site's state of its audit, known without reading it: where its chain ends, and what counts against limits.

It is a file of its own, so that an audit which was rotated by another program, cut or lost does not begin the limits
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from rondo.records import private_file
from rondo.records.durable import Damaged

STATE = "letters.state"
FIRST, LOST = "0" * 64, "f" * 64
"""Digest before the first line, and in place of one that is not known any more: it is no line's."""


@dataclass(frozen=True)
class AuditState:
    """The state of an audit.

    ``part``: the number of the file that is written now.
    ``size``, ``head``: its bytes, and the digest of the last line; -1 and ``LOST`` if the state before was lost.
    ``closed``: the digests of the last lines of the files before it; empty where one is not known.
    ``day``, ``today``: letters and bytes of that day by direction, and letters that left by kind.
    ``seconds``: seconds of training and scoring by run.
    ``plan``: content of the last plan that came.
    ``missing``: the day on which lines were found to be missing; empty if none are.
    """

    part: int = 1
    size: int = 0
    head: str = FIRST
    closed: tuple[str, ...] = ()
    day: str = ""
    today: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    plan: Mapping[str, Any] | None = None
    missing: str = ""

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """The state in ``folder``; None without one. Raises :class:`~rondo.records.durable.Damaged`."""
        content = private_file.read(folder / STATE)
        try:
            return None if content is None else cls(**{**content[0], "closed": tuple(content[0]["closed"])})
        except (KeyError, TypeError) as error:
            raise Damaged(str(error)) from None

    def write(self, folder: Path) -> None:
        """Replace the state in ``folder``. Raises OSError."""
        private_file.write(folder / STATE, asdict(self), b"")

    def on(self, day: str) -> Self:
        """The state on ``day``."""
        return self if day == self.day else replace(self, day=day, today={})

    def after(self, head: str, size: int, entry: Mapping[str, Any] | None, day: str) -> Self:
        """The state on ``day`` after a line with the digest ``head``, which is ``entry`` if it is whole."""
        state = replace(self.on(day), head=head, size=size)
        if entry is None:
            return state
        today, seconds = Counter(state.today), Counter(state.seconds)
        seconds[entry["run"]] += entry["seconds"]
        if entry["time"].startswith(day):
            today[entry["direction"]] += 1
            today[f"{entry['direction']} {entry['kind']}"] += 1
            today[f"{entry['direction']} bytes"] += entry["bytes"]
        plan = entry["content"] if (entry["direction"], entry["kind"]) == ("in", "plan") else state.plan
        return replace(state, today=dict(today), seconds=dict(seconds), plan=plan)

    def rotated(self) -> Self:
        """The state after the file that is written now was closed."""
        return replace(self, part=self.part + 1, size=0, closed=(*self.closed, self.head), missing="")
