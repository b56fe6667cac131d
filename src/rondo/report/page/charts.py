"""Charts of a page as data: lines with 95 % intervals over seeds, for its script to draw."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

from rondo.config import task_kinds as tasks
from rondo.records.curve import Spread, points
from rondo.records.recorded import Recorded
from rondo.report.numbers import number, plus_minus
from rondo.report.page.groups import Group
from rondo.report.table import Table

Points: TypeAlias = Mapping[int, float]
"""Values by the number of rounds done."""


@dataclass(frozen=True)
class Line:
    """One line of a chart. ``style``: the number of its colour and dash. ``low``, ``high``: ends of the interval, empty
    where there is none."""

    label: str
    style: int
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()

    @staticmethod
    def of(label: str, style: int, x: Sequence[float], spreads: Sequence[Spread]) -> Line:
        """The means over seeds, with the ends of their intervals where any has one."""
        low, high = zip(*(spread.ends or (None, None) for spread in spreads), strict=True)
        ends = (low, high) if any(end is not None for end in low) else ((), ())
        return Line(label, style, x, [spread.mean for spread in spreads], *ends)

    @property
    def end(self) -> str:
        """The last value, with half of its interval."""
        half = self.high[-1] - self.y[-1] if self.high and self.high[-1] is not None else None
        return plus_minus(self.y[-1], half)

    def content(self) -> dict[str, Any]:
        intervals = {"low": list(map(compact, self.low)), "high": list(map(compact, self.high))} if self.low else {}
        x, y = list(map(compact, self.x)), list(map(compact, self.y))
        return {"label": self.label, "style": self.style, "x": x, "y": y, **intervals}


@dataclass(frozen=True)
class Chart:
    """A chart. ``form``: lines, or bars that stand on one another. ``names``: of bars, the name of each place on the
    x axis. ``share``: whether the best value is 1, where the y axis then ends."""

    title: str
    x: str
    y: str
    lines: Sequence[Line]
    log: bool = False
    share: bool = False
    form: str = "lines"
    names: Sequence[str] = ()
    note: str = ""

    @property
    def is_dots(self) -> bool:
        """Whether every line is a single dot."""
        return self.form == "lines" and all(len(line.x) == 1 for line in self.lines)

    def table(self) -> Table:
        """The dots as a table."""
        notes = [self.note] if self.note else []
        title = ". ".join([self.title, *notes]).replace("..", ".")
        rows = [[line.label, number(line.x[0]), line.end] for line in self.lines]
        return Table(title, ("method", self.x, self.y), rows)

    def content(self) -> dict[str, Any]:
        lines = [line.content() for line in self.lines]
        names = {"names": list(self.names)} if self.names else {}
        marks = {key: True for key in ("log", "share") if getattr(self, key)}
        return {"title": self.title, "x": self.x, "y": self.y, "form": self.form, "lines": lines, **names, **marks}


@dataclass(frozen=True)
class Score:
    """A number that runs have after some of their rounds. ``points``: those of one run, from before the first round
    on. ``family``: the heading that it is listed under. ``share``: whether its best value is 1."""

    family: str
    name: str
    points: Callable[[Recorded], Points] = field(repr=False)
    log: bool = False
    share: bool = False


def is_share(metric: str) -> bool:
    """Whether the best value of a metric is 1."""
    return metric.startswith("f1 of ") or any(kind.metrics.get(metric, False) for kind in tasks.TABLE.values())


def over_seeds(group: Group, score: Score) -> dict[int, Spread]:
    """The score by rounds, where every run of the group has it that has it at all: a mean whose seeds change along the
    line would jump."""
    runs = [points for run in group.runs if (points := score.points(run))]
    rounds = sorted(set.intersection(*(set(points) for points in runs))) if runs else []
    return {done: Spread.of([points[done] for points in runs]) for done in rounds}


def last(group: Group, score: Score) -> Spread | None:
    """The score after the last round in which the group has it."""
    spreads = over_seeds(group, score)
    return spreads[max(spreads)] if spreads else None


def lines_of(groups: Sequence[Group], score: Score) -> Iterator[Line]:
    """A line over rounds per group that has the score."""
    for group in groups:
        spreads = over_seeds(group, score)
        if not spreads:
            continue
        yield Line.of(group.label, group.style, list(spreads), list(spreads.values()))


def finite(value: Any) -> float | None:
    """A number that a chart can show; None for anything else that a file may hold in its place."""
    try:
        number = float(value) if isinstance(value, float | int) else math.nan
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def compact(value: float | None) -> float | int | None:
    """A number of a chart with five digits that count, as an integer where it is one; None where it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.5g}")
    return int(short) if short == int(short) else short


def unit(most: float) -> tuple[str, float]:
    """The unit in which the ``most`` bytes of a chart are a number of few digits, and its bytes."""
    return next(((name, size) for name, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if most >= size), ("B", 1.0))


def axes(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """The axes under scores: the name of each, and the place of each group, by its style, after 0, 1, 2 ... rounds, the
    mean over seeds. Only rounds where a group's traffic is a secret."""

    def places(part: Callable[[Mapping[str, Any]], float]) -> dict[int, list[float]]:
        return {group.style: list(_places(group, part)) for group in groups}

    found = {"rounds": places(lambda record: 1.0)}
    if not any(group.secret_turnout for group in groups):
        sent = places(lambda record: record["bytes_up"] + record["bytes_down"])
        name, size = unit(max(max(of) for of in sent.values()))
        found[f"{name} up and down, all clients"] = {style: [p / size for p in of] for style, of in sent.items()}
        found["seconds"] = places(lambda record: float(record["seconds"]))
    return [
        {"name": name, "places": {style: list(map(compact, of)) for style, of in by_style.items()}}
        for name, by_style in found.items()
    ]


def _places(group: Group, part: Callable[[Mapping[str, Any]], float]) -> Iterator[float]:
    sums = [[0.0, *accumulate(map(part, run.rounds))] for run in group.runs]
    for rounds in range(max(map(len, sums))):
        yield statistics.fmean(of_run[rounds] for of_run in sums if len(of_run) > rounds)


def of_records(value: Callable[[Mapping[str, Any]], Any]) -> Callable[[Recorded], Points]:
    """The points of a number that each record may have, and that there may be before the first round; finite ones."""

    def of(run: Recorded) -> dict[int, float]:
        found = points(run.rounds, lambda record: finite(value(record)), run.before, run.measures_before)
        return {point.rounds: point.value for point in found}

    return of
