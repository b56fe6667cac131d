"""Rows that a task cannot use: the row, the column and the reason, without a tokenizer."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rondo.config.inputs import TaskConfig
from rondo.tasks.row_checks import RowCheck, RowProblem, row_check


def classification(*columns: str, labels: tuple[str, ...] = ("no", "yes"), owner: str | None = None) -> RowCheck:
    return row_check(TaskConfig(text=list(columns) or "text", label="label"), labels, owner)


LANGUAGE = row_check(TaskConfig(kind="causal-lm", prompt=["ask", "more"], response="answer"), ())


@pytest.mark.parametrize(
    ("row", "column", "words"),
    [
        ({"text": "w1"}, "label", "no such column; there are: text"),
        ({"text": "w1", "label": None}, "label", "missing"),
        ({"text": "w1", "label": "Yes"}, "label", "unknown label 'Yes'; known: no, yes"),
        ({"label": "no"}, "text", "no such column"),
        ({"text": None, "label": "no"}, "text", "expected text, got None"),
        ({"text": 7, "label": "no"}, "text", "expected text, got 7"),
        ({"text": " \t\n", "label": "no"}, "text", "empty"),
        ({"text": "w1 \ud800", "label": "no"}, "text", "surrogate"),
        ({"text": ["w1"], "label": "no"}, "text", "expected text, got ['w1']"),
        ({"text": {"w1": 2}, "label": "no"}, "text", "expected text, got {'w1': 2}"),
        ({"text": math.nan, "label": "no"}, "text", "expected text, got nan"),
        ({"text": "w1", "label": math.nan}, "label", "missing"),
        ({"text": "w1", "label": ["no"]}, "label", "expected one label, got ['no']: set task.multi_label = true"),
        ({"text": "w1", "label": {"no": 1}}, "label", "expected text or a number, got {'no': 1}"),
        ({"text": "w1", "label": b"no"}, "label", "expected text or a number, got b'no'"),
        ({"text": "w1", "label": list(range(1000))}, "label", ", 15, 16, 1"),
    ],
)
def test_unusable_rows_give_column_and_reason(row: dict[str, Any], column: str, words: str) -> None:
    problem = classification()(row, 12)
    assert problem is not None
    assert (problem.row, problem.column) == (12, column)
    assert words in problem.reason
    assert str(problem).startswith(f"row 12 (counted from 0), column {column!r}: ")
    assert len(problem.reason) < 120


def test_integer_boolean_and_whole_labels_match_by_text() -> None:
    check = classification(labels=("0", "1", "True"))
    assert [check({"text": "w1", "label": value}, 0) for value in (1, "0", True, 1.0)] == [None] * 4


def test_both_texts_of_a_pair_are_checked() -> None:
    check = classification("a", "b")
    assert check({"a": "w1", "b": "w2", "label": "no"}, 0) is None
    assert check({"a": "w1", "b": "", "label": "no"}, 3) == RowProblem(3, "b", "the text is empty")


def test_row_needs_its_owner() -> None:
    check = classification(owner="who")
    assert check({"text": "w1", "label": "no", "who": 3}, 0) is None
    assert check({"text": "w1", "label": "no", "who": " "}, 1) == RowProblem(1, "who", "the value is missing")
    assert check({"text": "w1", "label": "no", "who": math.nan}, 1) == RowProblem(1, "who", "the value is missing")
    problem = check({"text": "w1", "label": "no", "who": ["a", "b"]}, 1)
    assert problem is not None
    assert problem.reason == "expected text or a number, got ['a', 'b']"


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({"ask": "w1", "more": ""}, "answer"),
        ({"ask": "w1", "more": "", "answer": " "}, "answer"),
        ({"ask": "", "more": "w1", "answer": "w2"}, "ask"),
        ({"ask": "w1", "answer": "w2"}, "more"),
        ({"ask": "w1", "more": "", "answer": 5}, "answer"),
    ],
)
def test_unusable_language_rows_give_the_column(row: dict[str, Any], column: str) -> None:
    problem = LANGUAGE(row, 4)
    assert problem is not None
    assert (problem.row, problem.column) == (4, column)


@pytest.mark.parametrize("empty", ["", " ", None])
def test_prompt_columns_after_the_first_may_be_empty(empty: str | None) -> None:
    assert LANGUAGE({"ask": "w1", "more": empty, "answer": "w2"}, 0) is None


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        (["w2", {"b": 1}], "expected text or a number, got ['w2', {'b': 1}]"),
        ({"w2": 1}, "expected text or a number"),
        ("w2 \ud83d", "surrogate"),
        (b"w2", "expected text or a number"),
    ],
)
def test_what_cannot_stand_in_any_column_of_a_prompt(cell: Any, words: str) -> None:
    problem = LANGUAGE({"ask": "w1", "more": cell, "answer": "w3"}, 4)
    assert problem is not None
    assert (problem.row, problem.column) == (4, "more")
    assert words in problem.reason


@pytest.mark.parametrize("cell", [None, math.nan, "", " ", "w2", 7, 2.5, True])
def test_what_may_stand_in_a_later_column_of_a_prompt(cell: Any) -> None:
    assert LANGUAGE({"ask": "w1", "more": cell, "answer": "w3"}, 4) is None
