"""The values that a search has chosen for a method, as a file beside its runs keeps them: ``tuned.json``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from rondo.config.section import Positive, Section
from rondo.records.directory import RunDirectory, as_written


class Tried(Section):
    """A point of the grid with its scores."""

    values: dict[str, Any]
    """By key path."""
    scores: list[float | Literal["stopped", "not finite"]]
    """One per seed; a word for a trial that could not finish, or whose score is no number."""


class Chosen(Section):
    """The point of the grid that an arm takes."""

    digest: str
    """SHA-256 of what was searched. The values hold as long as it stays."""
    values: dict[str, Any]
    """By key path."""
    trials: Positive
    """Number of trials, over all points and seeds."""
    tried: list[Tried] = Field(default_factory=list)
    """All points, the best first."""


class Kept(Section):
    """The file ``tuned.json`` of an entry's runs, which a search leaves for those who have not its trials."""

    seconds: Annotated[float, Field(ge=0)] = 0.0
    """Of all trials."""
    arms: dict[str, Chosen] = Field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Kept:
        """That of the runs in ``folder``; without values if there is none. Raises :class:`ConfigError`."""
        file = folder / "tuned.json"
        if not file.exists():
            return cls()
        with as_written(file):
            return cls.model_validate(RunDirectory(folder).read(file.name))


def digest(searched: Mapping[str, Any]) -> str:
    """A digest of what was searched: grid, seeds, score and configuration."""
    text = json.dumps(searched, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
