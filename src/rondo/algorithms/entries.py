"""The facts about a method that are known without importing it. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rondo.algorithms.formulas import Numbers, Whole


@dataclass(frozen=True)
class Entry:
    """The facts about an algorithm that are known without importing it. A test compares every field with the class."""

    cls: str
    """``package.module:Class``."""
    summary: str
    """One line for ``rondo list``."""
    paper: str
    """First author, venue if any, year."""
    exact: bool
    linear: bool
    personal: bool
    head: Literal["shared", "local", "frozen"]
    up: str
    """Numbers that a client uploads per adapted module, in words, for a client that has the run's rank r."""
    down: str
    """The same for the numbers that a client receives."""
    up_numbers: Numbers
    """``up`` as a function."""
    down_numbers: Numbers
    """``down`` as a function."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters: name and type."""
    client_ranks: bool = False
    """Whether clients may have their own ranks."""
    least_squares: bool = False
    """Whether it is for tasks of least squares only."""
    needs_factors: bool = True
    """Whether it is about low-rank factors. Other methods train whole tensors too, and nothing else if there are no
    factors."""
    whole: Whole = "all"
    """Whole tensors that travel, up and down, of those that the method is given. A head that is local or frozen by
    ``model.head`` is not."""

    @property
    def flags(self) -> tuple[str, str, str]:
        """Exact, linear and personal, in words. "whole": exact where whole tensors are trained alone. "one rank":
        linear where clients have no ranks of their own."""
        exact = ("yes" if self.needs_factors else "whole") if self.exact else "no"
        linear = ("one rank" if self.client_ranks else "yes") if self.linear else "no"
        return exact, linear, "yes" if self.personal else "no"
