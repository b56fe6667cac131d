"""The values that a search has chosen for a method, as a file keeps them: ``[tuned.ARM]``."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from rondo.config import toml_file
from rondo.config.section import Positive, Section
from rondo.errors import ConfigError

_HEADER = "# Written by rondo tune: the values that each arm takes, and the scores of its trials, one per seed."
_TABLE = re.compile(r"""\s*\[\s*["']?tuned["']?\s*[.\]]""")


class Tried(Section):
    """A point of the grid with its scores."""

    values: dict[str, Any]
    """By key path."""
    scores: list[float | Literal["stopped"]]
    """One per seed; "stopped" for a trial that could not finish."""


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


def digest(searched: Mapping[str, Any]) -> str:
    """A digest of what was searched: grid, seeds, score and configuration."""
    text = json.dumps(searched, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def with_tuned(text: str, tuned: Mapping[str, Chosen]) -> str:
    """The TOML file ``text`` with the tables ``[tuned.ARM]`` in place of those that it has. All else stays as it is,
    remarks too. Raises :class:`ConfigError` where other keys would change, as they would with a table ``[tuned]`` that
    is written in another way."""
    lines, within = list[str](), False
    for line in text.splitlines():
        if line.startswith(("[", " [")) or _TABLE.match(line):
            within = _TABLE.match(line) is not None
        if not within and line != _HEADER:
            lines.append(line)
    written = "\n".join([*"\n".join(lines).rstrip().splitlines(), "", _HEADER, *_lines(tuned), ""])
    tables = {"tuned": {arm: chosen.model_dump() for arm, chosen in tuned.items()}} if tuned else {}
    if _parsed(written) != {key: value for key, value in tomllib.loads(text).items() if key != "tuned"} | tables:
        message = "this table cannot be replaced: remove it from the file, then run the same command again"
        raise ConfigError.at("tuned", message, "rondo tune")
    return written


def _lines(tuned: Mapping[str, Chosen]) -> list[str]:
    lines = []
    for arm, chosen in tuned.items():
        lines += [
            f"[tuned.{json.dumps(arm, ensure_ascii=False)}]",
            f"digest = {toml_file.inline(chosen.digest)}",
            f"trials = {chosen.trials}",
            f"values = {toml_file.inline(chosen.values)}",
            "tried = [",
            *(f"    {toml_file.inline(row.model_dump())}," for row in chosen.tried),
            "]",
        ]
    return lines


def _parsed(text: str) -> dict[str, Any] | None:
    """The keys of a TOML file; None if it is none."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
