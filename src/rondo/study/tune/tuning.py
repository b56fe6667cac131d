"""A search: its grid, its seeds and the share of the rows that is held out for it; and the values that it has chosen,
as a file beside its runs keeps them (``tuned.json``)."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from rondo.config.section import Fraction, Positive, Section
from rondo.records.directory import RunDirectory, as_written

Point = Mapping[str, Any]
"""Values of a grid by key path."""
Seeds = Annotated[list[Annotated[int, Field(ge=0, lt=2**63)]], Field(min_length=1)]


class Tuning(Section):
    """One grid for all arms. Each arm takes the point with the best mean score on rows held out of the training rows;
    after every seed the worse half of the points is left out."""

    grid: Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Field(min_length=1)]
    """Values by key path."""
    seeds: Seeds
    """Seeds of the trials: others than those of the entry."""
    held_out: Fraction = 0.2
    """Share of every client's training rows that is held out. 0: the trials are scored as the runs are, on the problem
    that a seed draws."""
    trials: Positive | None = None
    """Points of the grid that each arm tries by the first seed, chosen by optuna one after the other; left out, all."""

    @model_validator(mode="after")
    def _no_trial_is_made_twice(self) -> Self:
        for key, values in self.grid.items():
            if len({json.dumps(value, default=repr) for value in values}) < len(values):
                raise ValueError(f"the grid names a value of {key} twice")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("a seed of the tuning is named twice")
        if self.trials is not None and self.trials >= self.size:
            raise ValueError(f"trials = {self.trials} of a grid of {self.size} points: leave trials out to try all")
        return self

    @property
    def size(self) -> int:
        """The number of the grid's points."""
        return math.prod(map(len, self.grid.values()))

    def points(self) -> list[Point]:
        """All points of the grid."""
        return [dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())]

    def at_edge(self, point: Point) -> list[str]:
        """The keys whose value in ``point`` is the least or the largest number of several, so that a wider grid could
        have a better one."""
        numbers = {key: values for key, values in self.grid.items() if len(values) > 1 and all(map(is_number, values))}
        return [key for key, values in numbers.items() if point[key] in (min(values), max(values))]


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def merge(tree: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Put ``part`` over ``tree``, table by table."""
    for key, value in part.items():
        if isinstance(value, Mapping):
            before = tree.get(key)
            tree[key] = before if isinstance(before, dict) else {}
            merge(tree[key], value)
        else:
            tree[key] = value


def nested(values: Point) -> dict[str, Any]:
    """Values by key path, as tables."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *tables, key = path.split(".")
        part: dict[str, Any] = {key: value}
        for table in reversed(tables):
            part = {table: part}
        merge(tree, part)
    return tree


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
