"""A number of a run after each of its rounds, and its mean over runs with the interval."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rondo.records.paired import half_interval

TEST_KINDS = {"global": "global", "cold_start": "cold start"}
"""Kinds of scores on the common test set, and the model of each."""
OWN_KINDS = {"clients": "global", "personal": "personal"}
"""Kinds of scores on each client's own validation rows, and the model of each."""
FINE_TUNED_KINDS = {"fine_tuned": "fine-tuned"}
"""Kinds of scores on each client's own validation rows after fine-tuning, and the model of each."""

_ROUNDING = 1e-12
"""Values below it are rounding: no factor is asked of what follows them."""


def score(scores: Mapping[str, Any], kinds: Iterable[str], metric: str, part: str = "mean") -> Any:
    """The metric of the first of ``kinds`` that ``scores`` has; of one that clients have each, its ``part`` over them.
    None where there is none."""
    value = next((scores[kind].get(metric) for kind in kinds if kind in scores), None)
    return value.get(part) if isinstance(value, Mapping) else value


class Point(NamedTuple):
    """A number, the rounds that were done by then, and the bytes of all clients, up and down."""

    rounds: int
    bytes: int
    value: Any


def points(
    records: Iterable[Mapping[str, Any]],
    value: Callable[[Mapping[str, Any]], Any],
    scores: Mapping[str, Any],
    measures: Mapping[str, Any],
) -> Iterator[Point]:
    """The number that each record may have, where it has it. ``scores``, ``measures``: those before the first round,
    whose record has them alone."""
    sent = 0
    for record in ({"round": -1, "scores": scores, "measures": measures}, *records):
        sent += record.get("bytes_up", 0) + record.get("bytes_down", 0)
        if (number := value(record)) is not None:
            yield Point(record["round"] + 1, sent, number)


@dataclass(frozen=True)
class Spread:
    """A number over several runs: its mean, its deviation and half of its 95 % interval (None of one run), and the
    number of runs."""

    mean: float
    sd: float | None
    half: float | None
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        """The spread of one value or more."""
        sd = statistics.stdev(values) if len(values) > 1 else None
        return Spread(statistics.fmean(values), sd, half_interval(values), len(values))

    @property
    def ends(self) -> tuple[float, float] | None:
        """The ends of the interval."""
        return None if self.half is None else (self.mean - self.half, self.mean + self.half)


@dataclass(frozen=True)
class Curve:
    """A run's values of a metric: rounds that are done, bytes per client so far, value. A measure has one before the
    first round too.

    ``bytes``: up and down, the mean over all clients of the run, those that were never drawn among them: the sum over
    clients would grow with their number, whatever each of them sends. None where they would tell how many took part,
    and that is a secret.
    ``summary``: ``summary.json``; empty before the end.
    """

    rounds: list[int]
    bytes: list[float] | None
    values: list[float]
    clients: int = 1
    summary: Mapping[str, Any] = field(default_factory=dict)

    def until(self, *, bytes: float) -> Curve:
        """The part with no more than so many bytes."""
        sent = None if self.bytes is None else [so_far for so_far in self.bytes if so_far <= bytes]
        count = len(self.rounds if sent is None else sent)
        return replace(self, rounds=self.rounds[:count], bytes=sent, values=self.values[:count])

    def bytes_to(self, target: float, *, lower_is_better: bool = False) -> float | None:
        """Bytes per client by the first value that reaches ``target``, from below unless ``lower_is_better``; None
        without one, and where bytes are a secret."""
        sign = -1 if lower_is_better else 1
        values = zip(self.bytes or [], self.values, strict=self.bytes is not None)
        return next((sent for sent, value in values if sign * value >= sign * target), None)

    def largest_factor(self) -> float:
        """The largest ratio of a value to the one before; 0 of a single value."""
        pairs = itertools.pairwise(self.values)
        return max((later / earlier for earlier, later in pairs if earlier > _ROUNDING), default=0.0)
