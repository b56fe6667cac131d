"""The score of a run of a study, from the records of its rounds. Imports no torch."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from rondo.errors import ConfigError
from rondo.records.curve import Curve, points
from rondo.records.directory import RunDirectory, as_written
from rondo.study.runs import Trial


class NoScore(ConfigError):
    """A run is done, and no round has the score that is asked for."""


@dataclass(frozen=True)
class Score:
    """The score of a run, from the records of its rounds."""

    metric: str
    """Its path in a round's record."""
    last: int = 1
    """The number of last values whose mean is the score."""
    log10: bool = False
    """Whether the score is the metric's logarithm."""
    lower_is_better: bool = False
    every: int = 1
    """Only every so many rounds have a value."""
    take: Literal["last", "smallest"] = "last"
    """The score: the mean of the last values, or the smallest of all."""

    def curve(self, trial: Trial) -> Curve:
        """The values of a run that is done. Raises :class:`NoScore` if its record has none, :class:`ConfigError` if one
        lacks the logarithm that is asked for, or if the record is not as a run writes it."""
        with as_written(trial.folder):
            return self._curve(trial)

    def _curve(self, trial: Trial) -> Curve:
        directory = RunDirectory(trial.folder)
        summary = directory.read("summary.json") if directory.finished else None
        before = {} if summary is None else summary["measures"]["before"]
        clients = len(directory.read("partition.json")["clients"]) if summary is None else summary["clients"]
        sent = list[float]()
        curve = Curve([], None if trial.config.guarantee.secret_turnout else sent, [], clients, summary or {})
        for point in points(directory.rounds(), partial(self._value, held_out=trial.held_out), {}, before):
            if point.rounds % self.every:
                continue
            if self.log10 and point.value <= 0:
                message = f"{self.metric} is {point.value} after {point.rounds} rounds of {trial.folder.name}"
                raise ConfigError.at("log10", f"{message}, which has no logarithm: make fewer rounds", str(trial))
            curve.rounds.append(point.rounds)
            sent.append(point.bytes / clients)
            curve.values.append(point.value)
        if curve.rounds in ([], [0]):
            where = " on rows held out" if trial.held_out else ""
            message = f"no round has a score {self.metric!r}{where}; the scores are in {trial.folder / 'metrics.jsonl'}"
            raise NoScore.at("metric", message, str(trial))
        return curve

    def of(self, trial: Trial) -> float:
        """The score of a run that is done."""
        return self.of_values(self.curve(trial).values)

    def of_values(self, values: Sequence[float]) -> float:
        """The score of a run that had these values."""
        scored = [self.scaled(value) for value in values]
        return min(scored) if self.take == "smallest" else statistics.fmean(scored[-self.last :])

    def late_change(self, curve: Curve) -> float | None:
        """The mean of the values in the last tenth of the rounds less that in the tenth before; None without a value
        before the last tenth. The change of a score which is a mean of many values, or their smallest, would be small
        of any curve."""
        end, scaled = curve.rounds[-1], [self.scaled(value) for value in curve.values]
        count, earlier = (sum(done <= share * end for done in curve.rounds) for share in (0.9, 0.8))
        if count == 0:
            return None
        return statistics.fmean(scaled[count:]) - statistics.fmean(scaled[min(earlier, count - 1) : count])

    def scaled(self, value: float) -> float:
        """A value, or its logarithm if scores are such."""
        return math.log10(value) if self.log10 else value

    def unscaled(self, score: float) -> float:
        """A score, a mean or a difference of scores in the unit of the metric; of logarithms a ratio."""
        return 10.0**score if self.log10 else score

    def _value(self, record: Mapping[str, Any], *, held_out: bool) -> float | None:
        scores: Any = {**record["scores"], **{key: record.get(key) for key in ("measures", "diagnostics")}}
        *path, key = self.metric.split(".")
        own = path == ["own"]
        if held_out or own:
            kinds = (*["validation"] * held_out, *["fine_tuned"] * own, "personal", "clients")
            path = [next((kind for kind in kinds if kind in scores), "")]
        for part in (*path, key):
            scores = scores.get(part) if isinstance(scores, Mapping) else None
        value = scores.get("mean") if isinstance(scores, Mapping) else scores
        return value if isinstance(value, int | float) else None
