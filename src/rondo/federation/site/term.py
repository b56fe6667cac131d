"""A term: one thing that a plan asks, beside what a contract allows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Term:
    """One thing that a plan asks."""

    subject: str
    asked: str
    """The plan's wish. It may be told to the server, so no row is in it and no number of rows."""
    allowed: str
    """The contract's word on it."""
    kept: bool = True
    """Whether the wish is within the contract."""
    own: str = ""
    """Figures about it that the site's owner alone is told."""

    @property
    def reason(self) -> str:
        """The reason to refuse it."""
        return f"{self.subject}: {self.asked}, and its owner allows {self.allowed}"
