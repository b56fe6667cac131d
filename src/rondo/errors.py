"""Every exception that a user meets. Imports nothing of Rondo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self


def visible(text: str) -> str:
    """``text`` for a terminal: characters that it would obey, hide or reorder are written as Python escapes. Names from
    data files can hold any."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(frozen=True)
class Problem:
    """One fault in the user's input."""

    path: str
    """The key path."""
    message: str
    """The fault and its remedy."""

    def __str__(self) -> str:
        return visible(f"{self.path}: {self.message}")


class ConfigError(ValueError):
    """The user's input cannot be run.

    ``problems``: every fault found.
    ``source``: the input's name.
    """

    def __init__(self, problems: Sequence[Problem], source: str = "config") -> None:
        self.problems, self.source = tuple(problems), source
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        super().__init__("\n".join([f"{visible(source)}: {count}", *(f"  {p}" for p in problems)]))

    @classmethod
    def at(cls, path: str, message: str, source: str = "config") -> Self:
        """An error with a single problem."""
        return cls([Problem(path, message)], source)


@contextmanager
def headed(source: str) -> Iterator[None]:
    """Within, or in a function decorated with it, an error whose input has no name yet is headed by ``source``."""
    try:
        yield
    except ConfigError as error:
        if error.source != "config":
            raise
        raise ConfigError(error.problems, source) from None


class UnknownAlgorithm(ValueError):
    """No algorithm has this name. The message lists near matches."""


class RunStopped(Exception):
    """A run cannot go on. Everything committed before stays."""


class DiskFailed(RunStopped):
    """A run cannot be written. Once the disk has room again, it can be resumed."""


class StopRequested(Exception):
    """The run was asked to end. The current step was not taken, and its round does not count."""


class RunInterrupted(Exception):
    """A run was asked to stop, and stopped after its current step. ``run_dir`` holds everything committed."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__(f"interrupted; committed rounds are in {run_dir}")
        self.run_dir = run_dir
