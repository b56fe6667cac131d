"""``data.hold_out_by``: all rows of a person are on one side, at all clients and in each client's tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rondo.config import ConfigError, load
from rondo.data.population import Population
from rondo.runs.assembling.assemble import deal
from rondo.runs.assembling.given import Given
from small_runs import reviews, settings


def visits(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows of different texts, of persons with several; each person is at two clients."""
    made, rows = {}, []
    for row in reviews(20 * count, seed):
        made.setdefault(row["text"], row)
    for i, row in enumerate(list(made.values())[:count]):
        rows.append({**row, "patient": f"p{i % (count // 4)}"})
    return rows


def dealt(bert: Path, rows: list[dict[str, Any]], test: Any = None, **changes: Any) -> Population:
    data = {"validation_fraction": 0.4, "hold_out_by": "patient", "test_split": "", **changes.pop("data", {})}
    raw = settings(bert, data=data, **changes)
    given = Given(train=rows, test=test)
    return deal(load(raw, given.sets), given)[0]


def sides(population: Population, rows: list[dict[str, Any]], bert: Path) -> tuple[set[str], set[str]]:
    """The persons of training and of validation rows, known by their tokens."""
    import transformers

    coder = transformers.AutoTokenizer.from_pretrained(bert)
    whose = {tuple(coder(row["text"])["input_ids"]): row["patient"] for row in rows}
    members = population.members.values()
    train, held = ({whose[e.ids] for m in members for e in getattr(m, part)} for part in ("train", "validation"))
    return train, held


def test_a_person_is_on_one_side_at_all_clients(bert: Path) -> None:
    rows = visits(80)
    population = dealt(bert, rows)
    train, held = sides(population, rows, bert)
    assert train & held == set()
    assert len(train) > 8
    assert len(held) > 2
    more = dealt(bert, [*rows, {**rows[0], "text": "the film was very very very good", "patient": "new"}])
    assert sides(more, [*rows, {"text": "the film was very very very good", "patient": "new"}], bert)[1] >= held
    spread, both = sides(dealt(bert, rows, data={"hold_out_by": None}), rows, bert)
    assert spread & both


def test_test_rows_of_a_person_go_to_one_client(bert: Path) -> None:
    partition = {"kind": "iid", "clients": 3, "deal_tests": True}
    tests = visits(48, seed=5)
    population = dealt(bert, visits(60), tests, partition=partition)
    members = population.members.values()
    import transformers

    coder = transformers.AutoTokenizer.from_pretrained(bert)
    whose = {tuple(coder(row["text"])["input_ids"]): row["patient"] for row in tests}
    persons = [{whose[e.ids] for e in member.test} for member in members]
    assert sum(map(len, persons)) == len(set.union(*persons)) == 12


def test_persons_on_both_sides_are_told(bert: Path) -> None:
    rows = visits(40)
    tests = [{**row, "patient": "p3" if i < 3 else "q"} for i, row in enumerate(visits(20, seed=9))]
    said = " ".join(dealt(bert, rows, tests).report["warnings"])
    assert "1 of 2 values of 'patient' in the test set have training rows too" in said
    other = [{**row, "patient": "q"} for row in tests]
    assert "of 'patient'" not in " ".join(dealt(bert, rows, other).report["warnings"])


def test_row_without_a_person_is_refused(bert: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.hold_out_by: a row does not say whose it is: the value is missing"):
        dealt(bert, [*visits(12), {**visits(1 + 3)[0], "patient": None}])
    with pytest.raises(ConfigError, match=r"data\.hold_out_by: .*no such column; there are: text"):
        dealt(bert, visits(12), data={"hold_out_by": "person"})
