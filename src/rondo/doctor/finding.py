"""One thing that was looked at, and what was found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rondo.errors import visible

Mark = Literal["ok", "note", "fault"]
"""``note``: runs work, but not as they were tested, or slower than they could. ``fault``: some runs will fail."""


@dataclass(frozen=True)
class Finding:
    """The state of one thing."""

    name: str
    mark: Mark
    text: str
    """Goes into bug reports too: has no path, no name of a host and no name of a model."""
    remedy: str = ""
    """A command, or what else to do. Goes into bug reports too."""
    own: str = ""
    """Paths, hosts and names, for the terminal alone."""

    def line(self) -> str:
        """The line for a terminal."""
        shown = "; ".join(part for part in (self.text, self.own) if part)
        return visible(f"{self.mark:6}{self.name:36}{shown}{': ' if self.remedy else ''}{self.remedy}")

    def record(self) -> dict[str, str]:
        """The entry of a bug report."""
        return {"name": self.name, "mark": self.mark, "text": self.text, "remedy": self.remedy}
