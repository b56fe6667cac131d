"""The sections of a page: heading, a sentence, charts and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from markupsafe import Markup

from rondo.records.recorded import Claim
from rondo.report.page import tables
from rondo.report.page.charts import Chart, Line, Score, axes, lines_of, of_records, unit
from rondo.report.page.clients import client_charts, clients_table, partitions
from rondo.report.page.groups import Group, differences, shared
from rondo.report.page.scores import scores
from rondo.report.table import Table

_CODE, _MARK = Markup("<code>{}</code>"), Markup("<mark>{}</mark>")
_DIAGNOSTICS = {
    "interference": (
        "Interference: share of the mean update that aggregation loses or adds",
        "0: the server's model is exactly the mean of the clients' models.",
    ),
    "truncation_error": (
        "Truncation error: share that has no room in the rank",
        "0: all that was learned fits into the rank; a larger rank helps if it grows.",
    ),
    "drift_A": ("Drift of A in a round", "How far factor A moves in a round, relative to its size."),
    "drift_B": ("Drift of B in a round", "How far factor B moves in a round, relative to its size."),
    "drift_whole": (
        "Drift of whole tensors in a round",
        "How far tensors without factors, such as the head, move in a round, relative to their size.",
    ),
    "angle_A": ("Turn of A's space (sine)", "0: A's space stays, and only its coordinates change."),
    "angle_B": ("Turn of B's space (sine)", "0: B's space stays, and only its coordinates change."),
    "alignment_mean": (
        "Alignment of clients with the global update (cosine, mean)",
        "1: all clients pull in one direction; near 0 they pull in different ones.",
    ),
    "stable_rank": (
        "Stable rank of all that was learned",
        "About how many directions the learned change uses, of the rank that it may use.",
    ),
    "update_stable_rank": ("Stable rank of a round's update", "The same of what one round adds."),
}
"""The title of each diagnostic, and a sentence on how to read it."""


@dataclass(frozen=True)
class Figure:
    """A chart's place. ``number``: that of the chart among the page's, or the axis of the chosen score. ``key``: the
    parts of its bars."""

    title: str
    number: str
    note: str = ""
    key: Sequence[Line] = ()


@dataclass(frozen=True)
class Choice:
    """The scores to choose from: number and name, by heading. ``several``: whether lines are means over seeds."""

    families: Mapping[str, Sequence[tuple[int, str]]]
    figures: Sequence[Figure]
    several: bool


@dataclass(frozen=True)
class Fold:
    """Parts that open by a click on ``words``."""

    words: str
    inside: Sequence[Part]


Part: TypeAlias = "Figure | Sequence[Figure] | Table | Choice | Fold | str"


@dataclass(frozen=True)
class Section:
    """A heading, and what stands below it."""

    anchor: str
    heading: str
    parts: Sequence[Part]


@dataclass
class Page:
    """The parts of a page as they are made. ``data``: the charts, for its script."""

    sections: list[Section] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=lambda: {"charts": []})

    def section(self, anchor: str, heading: str, *parts: Part | None) -> None:
        """Add a section, unless all of its parts are None, or figures of which there are none."""
        if there := [part for part in parts if part is not None and part != []]:
            self.sections.append(Section(anchor, heading, there))

    def figures(self, charts: Iterable[Chart]) -> list[Figure | Table]:
        """The places of charts; a table in place of a chart whose lines are single dots."""
        made = list[Figure | Table]()
        for chart in charts:
            if chart.is_dots:
                made.append(chart.table())
                continue
            key = chart.lines if chart.form == "bars" and len(chart.lines) > 1 else ()
            made.append(Figure(chart.title, str(len(self.data["charts"])), chart.note, key))
            self.data["charts"].append(chart.content())
        return made


def build(
    groups: Sequence[Group], claims: Sequence[Claim], stopped: Sequence[tuple[str, str]], reference: Group
) -> Page:
    """All sections. ``stopped``: runs of a comparison that could not be finished, with the reasons. ``reference``: the
    group that differences are to."""
    page, all_scores = Page(), scores(groups)
    page.section("results", "Results", tables.results(groups, all_scores, reference), _stopped(stopped))
    page.section("claims", "Claims of papers", tables.claims(claims) if claims else None)
    page.section("scores", "Scores", *_scores(page, groups, all_scores))
    page.section("clients", "Clients", *page.figures(client_charts(groups)), clients_table(groups))
    page.section("rows", "Rows of each client", *page.figures(partitions(groups)))
    counted = [group.counted for group in groups]
    page.section("traffic", "Traffic", tables.traffic(counted), *_grid(page.figures(_traffic(counted))))
    failed = page.figures(_failed(counted))
    page.section("failures", "Failures", tables.failures(counted), *failed, tables.last_failures(counted))
    page.section("privacy", "Privacy", tables.guarantees(groups), *page.figures(_epsilon(groups)))
    page.section("configuration", "Configuration", *_configuration(groups))
    runs = [run for group in groups for run in group.runs]
    page.section("researchers", "For researchers", *_folded(page.figures(_diagnostics(groups))))
    page.section("answers", "Sample answers", *map(tables.answers, runs))
    page.section("runs", "Runs", tables.machines(groups), *map(tables.sites, runs))
    return page


def _scores(page: Page, groups: Sequence[Group], all_scores: Sequence[Score]) -> Iterator[Part]:
    found = [(score, lines) for score in all_scores if (lines := list(lines_of(groups, score)))]
    if not found:
        yield "No round is scored yet."
    charts = [Chart(score.name, "rounds", score.name, lines, score.log, score.share) for score, lines in found]
    families: dict[str, list[tuple[int, str]]] = {}
    options = list[dict[str, Any]]()
    for (score, _), chart in zip(found, charts, strict=True):
        if not chart.is_dots:
            families.setdefault(score.family, []).append((len(options), score.name))
            options.append({**chart.content(), "family": score.family})
    if options:
        page.data["scores"] = {"axes": axes(groups), "options": options}
        names = [axis["name"].split(",")[0] for axis in page.data["scores"]["axes"]]
        figures = [Figure(f"Over {name}", f"score-{i}") for i, name in enumerate(names)]
        yield Choice(families, figures, any(len(group.runs) > 1 for group in groups))
    if once := [(score, lines) for (score, lines), chart in zip(found, charts, strict=True) if chart.is_dots]:
        cells = [(score, {line.label: line.end for line in lines}) for score, lines in once]
        rows = [
            [f"{score.name} ({score.family})", *(of.get(group.label, "-") for group in groups)] for score, of in cells
        ]
        yield Table("Scores that were taken once", ("score", *(group.label for group in groups)), rows)


def _grid(parts: Sequence[Figure | Table]) -> Iterator[Part]:
    """Charts side by side, and tables under them."""
    if figures := [part for part in parts if isinstance(part, Figure)]:
        yield figures
    yield from (part for part in parts if isinstance(part, Table))


def _folded(parts: Sequence[Figure | Table]) -> Iterator[Part]:
    if parts:
        yield Fold("Diagnostics of the aggregation", list(_grid(parts)))


def _diagnostics(groups: Sequence[Group]) -> Iterator[Chart]:
    for key, (title, note) in _DIAGNOSTICS.items():
        points = of_records(lambda record, key=key: (record.get("diagnostics") or {}).get(key))  # type: ignore[misc]
        if lines := list(lines_of(groups, Score("", key, points))):
            yield Chart(title, "rounds", key.replace("_", " "), lines, note=note)


def _traffic(groups: Sequence[Group]) -> Iterator[Chart]:
    for way, title in (("bytes_up", "Up in a round, all clients"), ("bytes_down", "Down in a round, all clients")):
        most = max((record[way] for group in groups for run in group.runs for record in run.rounds), default=0)
        name, size = unit(most)
        points = of_records(
            lambda record, way=way, size=size: record[way] / size if way in record else None  # type: ignore[misc]
        )
        if lines := list(lines_of(groups, Score("", way, points))):
            yield Chart(title, "rounds", name, lines)


def _failed(groups: Sequence[Group]) -> Iterator[Chart]:
    points = of_records(lambda record: len(record["failed"]) if "failed" in record else None)
    if any(record["failed"] for group in groups for run in group.runs for record in run.rounds):
        yield Chart("Clients that failed", "rounds", "clients", list(lines_of(groups, Score("", "failed", points))))


def _epsilon(groups: Sequence[Group]) -> Iterator[Chart]:
    points = of_records(lambda record: record.get("epsilon"))
    if lines := list(lines_of(groups, Score("", "epsilon", points))):
        yield Chart("Epsilon of everything published so far", "rounds", "epsilon", lines)


def _configuration(groups: Sequence[Group]) -> Iterator[Part]:
    rows = []
    for row in differences(groups):
        told = ("-" if value is None else value for value in row.values)
        cells = (v if value == row.common else _MARK.format(v) for value, v in zip(row.values, told, strict=True))
        rows.append([_CODE.format(row.key), *cells])
    if rows:
        columns = ("key", *(group.label for group in groups))
        yield Table("Keys that differ; marked: other than in most", columns, rows, words=None)
    elif len(groups) > 1:
        yield "No key differs."
    equal = [(_CODE.format(key), value) for key, value in shared(groups)]
    heading = f"{len(equal)} keys that all runs share" if len(groups) > 1 else f"All {len(equal)} keys"
    yield Table(heading, ("key", "value"), equal, words=None, folded=heading)


def _stopped(stopped: Sequence[tuple[str, str]]) -> Table | None:
    return Table("Runs that could not be finished", ("run", "reason"), stopped, words=None) if stopped else None
