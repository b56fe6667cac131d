"""What is wrong with what a user gave: one line a fault, all faults at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


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
