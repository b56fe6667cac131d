"""What is wrong with what a user gave: one line a fault, all faults at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Problem:
    """One fault: the key path, what is wrong and how to mend it."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class ConfigError(ValueError):
    """The user's input cannot be run. ``problems`` lists every fault found."""

    def __init__(self, problems: Sequence[Problem], source: str = "config") -> None:
        self.problems, self.source = tuple(problems), source
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        super().__init__("\n".join([f"{source}: {count}", *(f"  {p}" for p in problems)]))


class UnknownAlgorithm(ValueError):
    """No algorithm has that name. The message lists near matches."""


class RunStopped(Exception):
    """A run cannot go on; what was committed stands."""


class StopRequested(Exception):
    """Someone asked for an end of the run: this step was not taken, and the round that it was of does not count."""


class RunInterrupted(Exception):
    """A run was asked to stop, and did after its current step. What was committed is in ``run_dir``."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(f"interrupted; what was done so far is in {run_dir}")
        self.run_dir = run_dir
