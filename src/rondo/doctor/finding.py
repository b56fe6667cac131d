"""One thing that was looked at, and what was found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rondo.errors import visible

Mark = Literal["ok", "note", "fault"]
"""``note``: runs work, but slower than they could, or not as they were tested. ``fault``: some runs will fail."""


@dataclass(frozen=True)
class Finding:
    """The state of one thing. It goes into bug reports: it has no path, and no name of a host, a model or data.

    ``remedy``: a command, or what else to do.
    """

    name: str
    mark: Mark
    text: str
    remedy: str = ""

    def line(self) -> str:
        """The line of the page."""
        return visible(f"{self.mark:6}{self.name:20}{self.text}{': ' if self.remedy else ''}{self.remedy}")
