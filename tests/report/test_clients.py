"""The table of a run's clients."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pytest
from rich.console import Console

from rondo.report.clients import clients_table, per_client


def summary(values: dict[str, float | None], *, primary: str = "accuracy", higher: bool = True) -> dict[str, Any]:
    known = sorted((v for v in values.values() if v is not None), reverse=not higher)
    spread = {"mean": sum(known) / len(known), "worst_tenth": known[0]} if known else {"mean": None}
    scores = {name: {primary: value, "loss": 0.5, "examples": 10} for name, value in values.items()}
    after = {"clients": {primary: spread, "per_client": scores}}
    return {"clients": len(values), "primary": primary, "titles": {}, "after": after}


def partition(names: object) -> dict[str, Any]:
    return {"clients": {name: {"train": 30, "validation": 10, "labels": None} for name in names}}  # type: ignore[attr-defined]


def shown(content: dict[str, Any]) -> Sequence[Sequence[str]]:
    table = clients_table(content, per_client(content, partition(content["after"]["clients"]["per_client"])))
    assert table is not None
    return table.rows


@pytest.mark.parametrize(("higher", "order"), [(True, ["c", "b", "a", "d"]), (False, ["a", "b", "c", "d"])])
def test_worst_client_comes_first(higher: bool, order: list[str]) -> None:
    rows = shown(summary({"a": 0.9, "b": 0.5, "c": 0.25, "d": None}, higher=higher))
    assert [row[0] for row in rows] == order
    assert rows[-1] == ("d", "30", "10", "-", "0.5000")


def test_table_of_many_clients_has_the_worst() -> None:
    content = summary({f"site-{i:03}": i / 100 for i in range(100)})
    table = clients_table(content, per_client(content, partition(content["after"]["clients"]["per_client"])))
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "the 20 worst of 100 clients" in text
    assert "site-019" in text
    assert "site-020" not in text


def test_runs_without_scores_of_clients_have_no_table() -> None:
    content = {"clients": 2, "primary": "accuracy", "titles": {}, "after": {"global": {"accuracy": 0.5}}}
    assert clients_table(content, per_client(content, partition("ab"))) is None


def test_failures_are_counted_by_client() -> None:
    failed = [{"client": "a", "reason": "crash"}]
    numbers = per_client(summary({"a": 1.0, "b": 1.0}), partition("ab"), [{"failed": failed}, {"failed": failed}])
    assert [numbers[name]["failed_rounds"] for name in "ab"] == [2, 0]


def test_name_of_a_client_cannot_steer_the_terminal() -> None:
    assert shown(summary({"\x1b[31mred": 0.5}))[0][0] == r"\x1b[31mred"
