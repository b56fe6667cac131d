"""Checks of the keys in ``[task]``, one for each kind (:data:`rondo.config.task_kinds.Checks`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rondo.errors import Problem


def classification(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    if own_data and task["text"] is None:
        yield Problem("task.text", "name the column, or the two columns, with the text")
    if own_data and task["label"] is None:
        yield Problem("task.label", "name the column with the label")


def sequence_regression(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    if task["text"] is None:
        yield Problem("task.text", "name the column, or the two columns, with the text")
    if task["target"] is None:
        yield Problem("task.target", "name the column with the number to predict")


def causal_lm(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    given = [key for key in ("text", "prompt", "messages") if task[key] is not None]
    if len(given) != 1:
        message = (
            "causal-lm needs either task.text, or task.prompt and task.response, or task.messages: name one of them"
        )
        yield Problem(f"task.{given[0] if given else 'text'}", message)
    if task["separator"] is not None and task["prompt"] is None:
        yield Problem("task.separator", "only task.prompt has columns to separate: remove it")
    if task["chat_template"] is not None and task["prompt"] is None and task["messages"] is None:
        yield Problem("task.chat_template", "plain text has no turns: name task.messages or task.prompt, or remove it")
    if isinstance(task["text"], list):
        message = "causal-lm takes one text column: name one, or use task.prompt and task.response"
        yield Problem("task.text", message)
    if (task["prompt"] is None) != (task["response"] is None):
        yield Problem("task.response", "task.prompt and task.response go together: name both")


def seq2seq_lm(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    if task["prompt"] is None:
        yield Problem("task.prompt", "name the column, or the columns, with the text to read")
    if task["response"] is None:
        yield Problem("task.response", "name the column with the text to write")


def question_answering(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    for key, content in (("context", "text that has the answers"), ("question", "questions"), ("answers", "answers")):
        if task[key] is None:
            yield Problem(f"task.{key}", f"name the column with the {content}")
    yield from _windows(task, _SHORTEST_WINDOW, "question and context")


def _windows(task: Mapping[str, Any], shortest: int, content: str) -> Iterator[Problem]:
    if task["max_length"] < shortest:
        message = f"{task['max_length']} leave no room for {content}: raise it to {shortest} or more"
        yield Problem("task.max_length", message)
    if task["stride"] is not None and task["stride"] > task["max_length"] // 2:
        message = f"above half of task.max_length = {task['max_length']}, so windows would hardly move: lower it"
        yield Problem("task.stride", message)


_SHORTEST_WINDOW = 32
"""Tokens with which windows move on: a quarter of them is the question's, at most half is shared with the window
before, and special tokens are few."""


def token_classification(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    first, second = ("text", "spans") if task["text"] is not None or task["spans"] is not None else ("tokens", "tags")
    if isinstance(task["text"], list):
        yield Problem("task.text", "token-classification takes one text column: name one")
    contents = {"text": "texts", "spans": "spans", "tokens": "lists of words", "tags": "lists of tags"}
    for key in (first, second):
        if task[key] is None:
            remedy = " (or task.text and task.spans)" if first == "tokens" else ""
            yield Problem(f"task.{key}", f"name the column with the {contents[key]}{remedy}")
    for key in ("tokens", "tags", "scheme"):
        if first == "text" and task[key] is not None:
            yield Problem(f"task.{key}", "task.text and task.spans take its place: remove it, or these two")
    yield from _windows(task, _SHORTEST_ROW, "words")
    names = task["labels"] or ["O"]
    types = dict.fromkeys(re.sub("^[BI]-", "", name) for name in names if name != "O")
    wanted = ["O", *(f"{mark}-{kind}" for kind in types for mark in "BI")]
    if set(names) != set(wanted):
        yield Problem("task.labels", f"name all tags of IOB2: {json.dumps(wanted, ensure_ascii=False)}")


_SHORTEST_ROW = 8
"""Tokens with which windows move on: special tokens are few, and at most half is shared with the window before."""


def multiple_choice(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    missing = (
        ("prompt", "name the column, or the columns, with the question"),
        ("choices", "name the column with the choices, or one column per choice"),
        ("answer", "name the column with the right choice's text, letter or number"),
    )
    for key, remedy in missing:
        if task[key] is None:
            yield Problem(f"task.{key}", remedy)
    if task["answer_text"] is not None and task["answer_text"].count("{}") != 1:
        yield Problem("task.answer_text", f"{task['answer_text']!r} should have {{}} once, in place of the choice")
    if task["letters"] and task["separator"] is not None and isinstance(task["prompt"], str):
        yield Problem("task.separator", "with letters, 'Answer:' stands before the choice: remove it")


def preference(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    """Also of a reward model."""
    if isinstance(task["prompt"], list):
        yield Problem("task.prompt", f"{task['kind']} takes one prompt column: name one")
    if task["label_smoothing"] is not None and task["loss_type"] != "robust":
        yield Problem("task.label_smoothing", "only loss_type = 'robust' uses it: set that, or remove it")


def embedding(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    for key, content in (("anchor", "texts"), ("positive", "texts that belong to them")):
        if task[key] is None:
            yield Problem(f"task.{key}", f"name the column with the {content}")
    if task["metric"] == "spearman" and task["score"] is None:
        yield Problem("task.metric", "only rows with a score have it: name task.score, or another metric")


def images(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    size, shape = task["image_size"], task["image_shape"]
    if shape is not None and shape[2] not in (1, 3):
        yield Problem("task.image_shape", f"{shape[2]} channels: give height, width, and 1 (greyscale) or 3 (colour)")
    if shape is not None and size is not None and shape[:2] != [size, size]:
        message = f"{shape[0]} x {shape[1]}, but task.image_size resizes to {size} x {size}: mend one of the two"
        yield Problem("task.image_shape", message)


def regression(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    if task["features"] is None:
        yield Problem("task.features", "name the columns with the numbers to predict from")
    if task["target"] is None:
        yield Problem("task.target", "name the column with the number to predict")
    elif task["target"] in (task["features"] or ()):
        yield Problem("task.target", f"{task['target']!r} is also one of task.features: remove it there")


def linear(task: Mapping[str, Any], own_data: bool) -> Iterator[Problem]:
    """None: the columns are x and y."""
    yield from ()
