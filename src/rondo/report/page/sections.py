"""The sections of a page: heading, a sentence, charts and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rondo.records.recorded import Claim
from rondo.report.page import tables
from rondo.report.page.charts import Chart, Score, axes, lines_of, of_records, unit
from rondo.report.page.clients import client_charts, clients_table, partitions
from rondo.report.page.groups import Group, differences, shared
from rondo.report.page.markup import Html, table, tag
from rondo.report.page.scores import scores

_DIAGNOSTICS = {
    "interference": "Interference: share of the mean update that aggregation loses or adds",
    "truncation_error": "Truncation error: share that has no room in the rank",
    "drift_A": "Drift of A in a round",
    "drift_B": "Drift of B in a round",
    "drift_whole": "Drift of whole tensors in a round",
    "angle_A": "Turn of A's space (sine)",
    "angle_B": "Turn of B's space (sine)",
    "alignment_mean": "Alignment of clients with the global update (cosine, mean)",
    "stable_rank": "Stable rank of all that was learned",
    "update_stable_rank": "Stable rank of a round's update",
}


@dataclass
class Page:
    """The parts of a page as they are made. ``data``: the charts, for its script."""

    sections: list[Html] = field(default_factory=list)
    contents: list[tuple[str, str]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=lambda: {"charts": []})

    def section(self, anchor: str, heading: str, *parts: Html | None) -> None:
        """Add a section, unless all of its parts are None."""
        there = [part for part in parts if part is not None]
        if there:
            self.contents.append((anchor, heading))
            title = tag("h2", heading, id=f"{anchor}-title")
            self.sections.append(tag("section", title, *there, id=anchor, aria_labelledby=f"{anchor}-title"))

    def figure(self, chart: Chart) -> Html:
        """A chart's place, with its table."""
        self.data["charts"].append(chart.content())
        note = [tag("p", chart.note, class_="note")] if chart.note else []
        if chart.form == "bars" and len(chart.lines) > 1:
            parts = [tag("li", _swatch(line.style), line.label) for line in chart.lines]
            note = [tag("ul", parts, class_="key"), *note]
        return self._figure(chart.title, f"{len(self.data['charts']) - 1}", note)

    def score_figure(self, axis: int, title: str) -> Html:
        """The place of the chosen score over an axis."""
        return self._figure(title, f"score-{axis}", [])

    @staticmethod
    def _figure(title: str, number: str, note: Sequence[Html]) -> Html:
        plot = tag("div", class_="plot", role="img", tabindex="0", aria_label=title)
        rows = tag("details", tag("summary", "Table"), tag("div", class_="rows"))
        readout = tag("p", class_="readout", aria_live="polite")
        return tag("figure", tag("figcaption", title), plot, readout, *note, rows, data_chart=number)


def build(groups: Sequence[Group], claims: Sequence[Claim], stopped: Sequence[tuple[str, str]]) -> Page:
    """All sections. ``stopped``: runs of a comparison that could not be finished, with the reasons."""
    page, all_scores = Page(), scores(groups)
    page.section("results", "Results", tables.results(groups, all_scores), _stopped(stopped))
    page.section("claims", "Claims of papers", tables.claims(claims) if claims else None)
    page.section("scores", "Scores", *_scores(page, groups, all_scores))
    page.section("clients", "Clients", *(page.figure(c) for c in client_charts(groups)), clients_table(groups))
    page.section("rows", "Rows of each client", *(page.figure(chart) for chart in partitions(groups)))
    page.section("aggregation", "Aggregation", _grid([page.figure(c) for c in _diagnostics(groups)]))
    counted = [group.counted for group in groups]
    page.section("traffic", "Traffic", tables.traffic(counted), _grid([page.figure(c) for c in _traffic(counted)]))
    failed = [page.figure(c) for c in _failed(counted)]
    page.section("failures", "Failures", tables.failures(counted), *failed, tables.last_failures(counted))
    page.section("privacy", "Privacy", tables.guarantees(groups), *(page.figure(c) for c in _epsilon(groups)))
    page.section("configuration", "Configuration", *_configuration(groups))
    runs = [run for group in groups for run in group.runs]
    page.section("answers", "Sample answers", *map(tables.answers, runs))
    page.section("runs", "Runs", tables.machines(groups), *map(tables.sites, runs))
    return page


def legend(groups: Sequence[Group]) -> Html:
    """The groups with colour and dash of each; a button hides its lines."""
    if len(groups) < 2:
        return Html("")
    buttons = [
        tag("button", _swatch(i), group.label, type="button", aria_pressed="true") for i, group in enumerate(groups)
    ]
    return tag("div", buttons, class_="legend", role="group", aria_label="Lines shown")


def _swatch(style: int) -> Html:
    return tag("span", class_="swatch", data_style=str(style))


def _scores(page: Page, groups: Sequence[Group], all_scores: Sequence[Score]) -> Iterator[Html | None]:
    found = [(score, lines) for score in all_scores if (lines := list(lines_of(groups, score)))]
    if not found:
        yield tag("p", "No round is scored yet.")
        return
    families: dict[str, list[Html]] = {}
    options = []
    for number, (score, lines) in enumerate(found):
        chosen = tag("option", score.name, value=str(number), selected=number == 0)
        families.setdefault(score.family, []).append(chosen)
        content = {"y": score.name, "family": score.family, "lines": [line.content() for line in lines]}
        options.append(content | ({"log": True} if score.log else {}))
    page.data["scores"] = {"axes": axes(groups), "options": options}
    groups_of_options = [tag("optgroup", options, label=family) for family, options in families.items()]
    yield tag("p", tag("label", "Score ", tag("select", groups_of_options, id="score")))
    names = [axis["name"] for axis in page.data["scores"]["axes"]]
    yield _grid([page.score_figure(i, f"Over {name.split(',')[0]}") for i, name in enumerate(names)])
    if any(len(group.runs) > 1 for group in groups):
        yield tag("p", "Lines are means over seeds, bands their 95 % intervals (Student's t).", class_="note")


def _diagnostics(groups: Sequence[Group]) -> Iterator[Chart]:
    for key, title in _DIAGNOSTICS.items():
        points = of_records(lambda record, key=key: (record.get("diagnostics") or {}).get(key))  # type: ignore[misc]
        if lines := list(lines_of(groups, Score("", key, points))):
            yield Chart(title, "rounds", key.replace("_", " "), lines)


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


def _configuration(groups: Sequence[Group]) -> Iterator[Html]:
    rows = []
    for row in differences(groups):
        common = row.common
        cells = [_value(value) if value == common else tag("mark", _value(value)) for value in row.values]
        rows.append([tag("code", row.key), *cells])
    if rows:
        columns = ("key", *(group.label for group in groups))
        caption = "Keys that differ; marked: other than in most"
        yield table(columns, rows, caption=caption, numbers=False)
    elif len(groups) > 1:
        yield tag("p", "No key differs.")
    equal: list[list[str | Html]] = [[tag("code", key), value] for key, value in shared(groups)]
    heading = f"{len(equal)} keys that all runs share" if len(groups) > 1 else f"All {len(equal)} keys"
    content = table(("key", "value"), equal, caption=heading, numbers=False)
    yield tag("details", tag("summary", heading), content)


def _value(value: str | None) -> str:
    return "-" if value is None else value


def _stopped(stopped: Sequence[tuple[str, str]]) -> Html | None:
    if not stopped:
        return None
    return table(("run", "reason"), stopped, caption="Runs that could not be finished", numbers=False)


def _grid(figures: Sequence[Html]) -> Html | None:
    return tag("div", figures, class_="grid") if figures else None
