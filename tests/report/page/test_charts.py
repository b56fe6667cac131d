"""Lines of charts: means over seeds, their intervals, and places on the axes of bytes and seconds."""

from __future__ import annotations

import math

import pytest

from page_runs import grid, recorded
from rondo.records.recorded import Recorded
from rondo.report.page.charts import Score, axes, last, lines_of, of_records, unit
from rondo.report.page.clients import client_charts, partitions
from rondo.report.page.groups import grouped
from rondo.report.page.scores import scores


def fixed(values: dict[str, dict[int, float]]) -> Score:
    return Score("", "score", lambda run: values[run.name])


def two_seeds() -> list[Recorded]:
    return [recorded("a", seed=0), recorded("b", seed=1)]


def test_interval_is_students_t() -> None:
    spread = last(grouped(two_seeds())[0], fixed({"a": {1: 0.4}, "b": {1: 0.6}}))
    assert spread is not None
    assert spread.mean == pytest.approx(0.5)
    assert spread.half == pytest.approx(12.706 * math.sqrt(0.02) / math.sqrt(2), rel=1e-4)


def test_number_that_no_chart_can_show_is_left_out() -> None:
    run = recorded(rounds=4)
    for record, value in zip(run.rounds, (10**400, float("inf"), "0.5", 0.25), strict=True):
        record["diagnostics"]["interference"] = value
    points = of_records(lambda record: record.get("diagnostics", {}).get("interference"))
    assert points(run) == {4: 0.25}


def test_line_ends_where_a_seed_ends() -> None:
    (line,) = lines_of(grouped(two_seeds()), fixed({"a": {0: 1.0, 1: 2.0, 2: 3.0}, "b": {0: 1.0, 1: 4.0}}))
    assert (list(line.x), list(line.y)) == ([0, 1], [1.0, 3.0])


def test_seed_without_the_score_does_not_end_the_line() -> None:
    (line,) = lines_of(grouped(two_seeds()), fixed({"a": {0: 1.0, 1: 2.0}, "b": {}}))
    assert (list(line.y), list(line.low)) == ([1.0, 2.0], [])


def test_axes_sum_bytes_and_seconds() -> None:
    groups = grouped(two_seeds())
    rounds, sent, seconds = axes(groups)
    assert rounds["places"][0] == [0, 1, 2, 3, 4, 5, 6]
    assert sent["name"] == "MB up and down, all clients"
    assert sent["places"][0][:3] == [0, 1, 2.9]
    assert seconds["places"][0][:3] == [0, 2.5, 5]


@pytest.mark.parametrize(("most", "name"), [(0, "B"), (999, "B"), (1000, "kB"), (3e6, "MB"), (2e9, "GB")])
def test_unit_of_bytes(most: float, name: str) -> None:
    assert unit(most)[0] == name


def test_first_score_is_the_primary_on_the_test_set() -> None:
    first = scores(grouped([recorded()]))[0]
    assert (first.family, first.name) == ("test set", "accuracy")


def test_first_score_of_personal_models_is_at_their_clients() -> None:
    first = scores(grouped([recorded("a"), recorded("b", algorithm="fedsa-lora", personal=True)]))[0]
    assert (first.family, first.name) == ("clients' own rows", "accuracy, mean over clients")


def test_private_run_has_no_loss_and_no_clients() -> None:
    names = [score.name for score in scores(grouped([recorded(private=True)]))]
    assert names == ["accuracy", "macro f1", "matthews", "auc", "loss"]


def test_measures_are_on_a_logarithmic_axis() -> None:
    run = recorded(measures_before={"global_loss": 10.0})
    for record in run.rounds:
        record["measures"]["global_loss"] = 10.0 ** -record["round"]
    (score,) = [score for score in scores(grouped([run])) if score.name == "global loss"]
    assert score.log


def test_clients_go_from_the_worst_to_the_best() -> None:
    (chart,) = client_charts(grouped(grid(1, 2, 3)))
    assert list(chart.lines[0].y) == sorted(chart.lines[0].y)
    assert chart.lines[0].x[-1] == 100
    run = recorded(higher_is_better=False)
    (chart,) = client_charts(grouped([run]))
    assert list(chart.lines[0].y) == sorted(chart.lines[0].y, reverse=True)


def test_rows_are_stacked_by_label() -> None:
    (chart,) = partitions(grouped([recorded()]))
    assert {line.label: list(line.y) for line in chart.lines} == {"a": [3, 4, 5], "b": [5, 5, 5]}
    assert list(chart.names) == ["ann", "bob", "cid"]


def test_rows_of_many_clients_are_a_line() -> None:
    (chart,) = partitions(grouped([recorded(clients=[f"c{i}" for i in range(300)])]))
    assert chart.form == "lines"
    assert len(chart.lines[0].y) == 200
