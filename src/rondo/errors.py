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


def first_of(names: Sequence[str], most: int = 10) -> str:
    """The first ``most`` of ``names``, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


@dataclass(frozen=True)
class Problem:
    """One fault in the user's input.

    >>> from rondo import Problem
    >>> print(Problem("train.lr", "should be above 0"))
    train.lr: should be above 0
    """

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

    >>> import rondo
    >>> try:
    ...     rondo.run({"train": {"lr": -1, "epochs": 3}})
    ... except rondo.ConfigError as error:
    ...     print([problem.path for problem in error.problems])
    ['train.lr', 'train.epochs']
    """

    def __init__(self, problems: Sequence[Problem], source: str = "config") -> None:
        self.problems, self.source = tuple(problems), source
        count = f"{len(problems)} problem{'s' if len(problems) != 1 else ''}"
        super().__init__("\n".join([f"{visible(source)}: {count}", *(f"  {p}" for p in problems)]))

    @classmethod
    def at(cls, path: str, message: str, source: str = "config") -> Self:
        """An error with a single problem."""
        return cls([Problem(path, message)], source)


class PlanRefused(ConfigError):
    """A site's contract, or its owner, refuses the plan of a federation's server."""


@contextmanager
def headed(source: str) -> Iterator[None]:
    """Within, or in a function decorated with it, an error whose input has no name yet is headed by ``source``."""
    try:
        yield
    except ConfigError as error:
        if error.source != "config":
            raise
        raise type(error)(error.problems, source) from None


class UnknownAlgorithm(ValueError):
    """No algorithm has this name. The message lists near matches.

    >>> from rondo import UnknownAlgorithm, algorithms
    >>> try:
    ...     algorithms.get("roloraa")
    ... except UnknownAlgorithm as error:
    ...     print(str(error)[:60])
    no algorithm is called 'roloraa'; did you mean 'rolora' or '
    """


class RunStopped(Exception):
    """A run cannot go on. Everything committed before stays.

    >>> def train(config):  # three skipped rounds in a row, or a full disk; committed rounds stay
    ...     try:
    ...         return rondo.run(config, run_dir="runs/first")
    ...     except rondo.RunStopped as stopped:
    ...         print(stopped)
    """


class DiskFailed(RunStopped):
    """A run cannot be written. Once the disk has room again, it can be resumed."""


class StopRequested(Exception):
    """The run was asked to end. The current step was not taken, and its round does not count."""


class RunInterrupted(Exception):
    """A run was asked to stop, and stopped after its current step. ``run_dir`` holds everything committed.

    >>> import threading
    >>> stop = threading.Event()
    >>> stop.set()  # from a signal handler or another thread
    >>> try:
    ...     rondo.run(digits, run_dir="runs/interrupted", stop=stop)
    ... except rondo.RunInterrupted as error:
    ...     print(error.run_dir.name)
    interrupted
    """

    def __init__(self, run_dir: Path) -> None:
        super().__init__(f"interrupted; committed rounds are in {run_dir}")
        self.run_dir = run_dir
