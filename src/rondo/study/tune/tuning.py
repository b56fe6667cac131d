"""A search: its grid, its seeds and the share of the rows that is held out for it; the values that it has chosen, as a
file beside its runs keeps them (``tuned.json``); and equal trials for every arm, halved after every seed."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from rondo.config.packages import missing
from rondo.config.section import Fraction, Positive, Section
from rondo.errors import ConfigError
from rondo.records.directory import RunDirectory, as_written
from rondo.study.runs import Runs, Trial
from rondo.study.score import NoScore, Score

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
    """Seconds of all trials together."""
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


class Proposals:
    """Proposes points of ``grid``, by optuna's tree of Parzen estimators (TPE). The same seed and the same losses give
    the same points, so a search that goes on asks anew for those that it has already tried. Raises :class:`ConfigError`
    where optuna is not installed."""

    def __init__(self, grid: Mapping[str, Sequence[Any]], seed: int) -> None:
        try:
            import optuna
        except ImportError:
            raise ConfigError.at("trials", missing("optuna"), "rondo tune") from None
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._grid = grid
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed % 2**32))
        # Places in the list of a key's values: numbers in order are near each other, other values are not.
        self._places: dict[str, Any] = {
            key: optuna.distributions.IntDistribution(0, len(values) - 1)
            if _in_order(values)
            else optuna.distributions.CategoricalDistribution(tuple(range(len(values))))
            for key, values in grid.items()
        }

    def ask(self) -> Point:
        """The next point. Its loss must be told before another is asked for."""
        self._asked = self._study.ask(self._places)
        return {key: values[self._asked.params[key]] for key, values in self._grid.items()}

    def tell(self, loss: float) -> None:
        """The loss of the last point; infinity for a trial that could not finish."""
        self._study.tell(self._asked, loss)


def _in_order(values: Sequence[Any]) -> bool:
    return all(map(is_number, values)) and list(values) in (sorted(values), sorted(values, reverse=True))


@dataclass(frozen=True)
class Search:
    """The search of ``tuning`` with the trials in ``runs``; ``trial`` gives that of an arm, a seed and a point."""

    runs: Runs
    tuning: Tuning
    score: Score
    trial: Callable[[str, int, Point], Trial]

    def missing(self, arm: str) -> list[Trial]:
        """The trials to make next; none once ``arm`` is tuned."""
        return self._made(arm)[0]

    def trials(self, arm: str) -> list[Trial]:
        """The trials so far, and those to make next."""
        return [trial for row in self._made(arm)[1] for trial in row]

    def point(self, arm: str) -> Point:
        """The point that ``arm`` takes. It must be tuned."""
        missing, rows = self._made(arm)
        assert not missing, "a tuning is not finished"
        return rows[0][0].point

    def chosen(self, arm: str, digest: str) -> Chosen:
        """The point that ``arm`` takes, with the scores of all trials, best points first. It must be tuned."""
        point, rows = self.point(arm), self._made(arm)[1]
        tried = [Tried(values=dict(row[0].point), scores=list(map(self._score, row))) for row in rows]
        return Chosen(digest=digest, values=dict(point), trials=sum(map(len, rows)), tried=tried)

    def _made(self, arm: str) -> tuple[list[Trial], list[list[Trial]]]:
        """The trials to make next, and the trials of each point. Once there are none, the best point is the first."""
        missing, opening = self._opening(arm)
        rows, left_out = [[trial] for trial in opening], list[list[Trial]]()
        for seed in self.tuning.seeds:
            if seed != self.tuning.seeds[0]:
                rows = [[*row, self.trial(arm, seed, row[0].point)] for row in rows]
                missing = [row[-1] for row in rows if not self.runs.done(row[-1])]
            if missing:
                break
            rows.sort(key=lambda row: statistics.fmean(map(self._loss, row)))
            count = 1 if seed == self.tuning.seeds[-1] else math.ceil(len(rows) / 2)
            rows, left_out = rows[:count], [*rows[count:], *left_out]
        return missing, [*rows, *left_out]

    def _opening(self, arm: str) -> tuple[list[Trial], list[Trial]]:
        """The trials of the first seed: those to make next, and all so far."""
        seed = self.tuning.seeds[0]
        if self.tuning.trials is None:
            trials = [self.trial(arm, seed, point) for point in self.tuning.points()]
            return [trial for trial in trials if not self.runs.done(trial)], trials
        proposals, made = Proposals(self.tuning.grid, seed), dict[str, Trial]()
        for _ in range(self.tuning.trials):
            trial = self.trial(arm, seed, proposals.ask())
            if not self.runs.done(trial):
                return [trial], list(made.values())
            proposals.tell(self._loss(trial))
            made.setdefault(trial.folder.name, trial)  # a point that is proposed twice is one trial
        return [], list(made.values())

    def _loss(self, trial: Trial) -> float:
        """The score of a trial, the lower the better. One without a number is the worst."""
        score = self._score(trial)
        if isinstance(score, str):
            return math.inf
        return score if self.score.lower_is_better else -score

    def _score(self, trial: Trial) -> float | Literal["stopped", "not finite"]:
        """The score of a trial that is done."""
        if self.runs.has_stopped(trial):
            return "stopped"
        try:
            score = self.score.of(trial)
        except NoScore:
            return "not finite"
        return score if math.isfinite(score) else "not finite"
