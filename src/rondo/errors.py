"""Every exception that a user meets. Imports nothing of Rondo."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True)
class Problem:
    """One fault: the key path, what is wrong and how to mend it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class ConfigError(ValueError):
    """The user's input cannot be run. ``problems`` lists every fault found; ``source`` names the input."""

    def __init__(self, problems: Sequence[Problem], source: str = "config") -> None:
        self.problems, self.source = tuple(problems), source
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        super().__init__("\n".join([f"{source}: {count}", *(f"  {p}" for p in problems)]))

    @classmethod
    def at(cls, path: str, message: str, source: str = "config") -> Self:
        """An error with a single fault."""
        return cls([Problem(path, message)], source)


class UnknownAlgorithm(ValueError):
    """No algorithm has that name. The message lists near matches."""


class RunStopped(Exception):
    """A run cannot go on. Everything committed before stays."""


class StopRequested(Exception):
    """The run was asked to end: the current step was not taken, and its round does not count."""


class RunInterrupted(Exception):
    """A run was asked to stop, and stopped after its current step. ``run_dir`` has all that was committed."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(f"interrupted; what was done so far is in {run_dir}")
        self.run_dir = run_dir
