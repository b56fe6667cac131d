"""The search of a grid: equal trials for every arm, the worse half of the points left out after every seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rondo.config.packages import missing
from rondo.errors import ConfigError
from rondo.study.runs import Runs, Trial
from rondo.study.score import NoScore, Score
from rondo.study.tune.tuning import Chosen, Point, Tried, Tuning, is_number


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
