"""Answers of a row: every form that data sets have, and the reasons for which a row is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from rondo.config.inputs import TaskConfig
from rondo.tasks.language.answering.question_answering import QuestionAnswering, answers_of

CONTEXT = "Rome was not built in a day. In Rome."
PAIR = {"text": ["Rome", "a day"], "answer_start": [0, 22]}
EXPECTED = [("Rome", 0), ("a day", 22)]


@pytest.mark.parametrize(
    "value",
    [
        PAIR,
        {**PAIR, "extra": [1, 2]},
        [{"text": "Rome", "answer_start": 0}, {"text": "a day", "answer_start": 22.0}],
        {"text": np.array(["Rome", "a day"], dtype=object), "answer_start": np.array([0, 22])},
        json.dumps(PAIR),
        '[{"text": "Rome", "answer_start": 0}, {"text": "a day", "answer_start": 22}]',
    ],
)
def test_forms_with_starts(value: Any) -> None:
    assert answers_of(CONTEXT, value, None, separate=False) == EXPECTED


@pytest.mark.parametrize(
    ("value", "starts", "expected"),
    [
        (["Rome", "a day"], [0, 22], EXPECTED),
        ('["Rome", "a day"]', "[0, 22]", EXPECTED),
        ("Rome", 31, [("Rome", 32)]),
        ("Rome", "32", [("Rome", 32)]),
        (" a day", 21, [(" a day", 21)]),
        (np.array(["Rome"]), np.array([32]), [("Rome", 32)]),
        ("Rome", np.int64(32), [("Rome", 32)]),
        ([], [], []),
    ],
)
def test_starts_in_a_column_of_their_own(value: Any, starts: Any, expected: list[tuple[str, int]]) -> None:
    if starts == 31:
        with pytest.raises(ValueError, match=r"'Rome' is not at character 31 .*; it is at 0"):
            answers_of(CONTEXT, value, starts, separate=True)
    else:
        assert answers_of(CONTEXT, value, starts, separate=True) == expected


def test_answers_may_be_none() -> None:
    assert answers_of(CONTEXT, {"text": [], "answer_start": []}, None, separate=False) == []
    assert answers_of(CONTEXT, [], None, separate=False) == []
    for empty in (None, "", float("nan")):
        assert answers_of(CONTEXT, empty, None, separate=False) == answers_of(CONTEXT, empty, "", separate=True) == []


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("Rome", "which is not JSON"),
        ("{'text': ['Rome'], 'answer_start': [0]}", "which is not JSON"),
        (["Rome"], "expected {"),
        ({"text": ["Rome"]}, "expected {"),
        ({"text": ["Rome"], "answer_start": []}, "1 answers and 0 starts"),
        ({"text": ["Rome"], "answer_start": ["0"]}, "should be a number of characters"),
        ({"text": ["Rome"], "answer_start": [True]}, "should be a number of characters"),
        ({"text": ["Rome"], "answer_start": [float("nan")]}, "should be a number of characters"),
        ({"text": ["Rome"], "answer_start": [-5]}, "is not at character -5"),
        ({"text": ["Oslo"], "answer_start": [0]}, "it is nowhere in the context"),
        ({"text": [""], "answer_start": [0]}, "an answer should be a text"),
        ({"text": [7], "answer_start": [0]}, "an answer should be a text"),
    ],
)
def test_faults_have_their_reason(value: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("{", r"\{")):
        answers_of(CONTEXT, value, None, separate=False)


def test_row_without_answer_needs_the_key() -> None:
    keys = TaskConfig(kind="question-answering", context="c", question="q", answers="a")
    row = {"c": CONTEXT, "q": "?", "a": {"text": [], "answer_start": []}}
    problem = QuestionAnswering.problem(keys, row, 4)
    assert (
        str(problem)
        == "row 4 (counted from 0), column 'a': no answer; if questions may have none, set task.unanswerable = true"
    )
    assert QuestionAnswering.problem(keys.model_copy(update={"unanswerable": True}), row, 4) is None
