"""The answers of a question, read from a row: texts and the characters of the context where they start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rondo.tasks.row_checks import is_missing

_FORMS = 'expected {"text": [...], "answer_start": [...]}, or texts with task.answer_start'


def answers_of(context: str, value: Any, starts: Any, *, separate: bool) -> list[tuple[str, int]]:
    """The answers in ``value``, with the character of ``context`` where each starts.

    ``value`` is SQuAD's ``{"text": [...], "answer_start": [...]}`` as ``datasets`` stores it, or a list of
    ``{"text", "answer_start"}`` as in SQuAD's own files. With ``separate``, it is a text or a list of texts, and
    ``starts`` the start or starts. Each may be JSON, as in a CSV file. An empty cell is no answer.

    Raises :class:`ValueError` with the reason for another form, and for an answer that is not in the context at its
    start.
    """
    if _empty(value) and (not separate or _empty(starts)):
        return []
    if separate:
        starts = _parsed(starts)
        texts = value if isinstance(value, str) and not isinstance(starts, list | tuple) else _parsed(value)
        pair = {"text": texts, "answer_start": starts}
    else:
        value = _parsed(value)
        if isinstance(value, list | tuple) and all(isinstance(answer, Mapping) for answer in value):
            pair = {key: [answer.get(key) for answer in value] for key in ("text", "answer_start")}
        elif isinstance(value, Mapping) and value.keys() >= {"text", "answer_start"}:
            pair = {key: value[key] for key in ("text", "answer_start")}
        else:
            raise ValueError(f"{_FORMS}, got {value!r:.60}")
    texts, places = (
        list(part) if isinstance(part, list | tuple) else [part]
        for part in (_list(pair["text"]), _list(pair["answer_start"]))
    )
    if len(texts) != len(places):
        raise ValueError(f"{len(texts)} answers and {len(places)} starts")
    return [(text, _checked(context, text, place)) for text, place in zip(texts, places, strict=True)]


def _empty(value: Any) -> bool:
    return is_missing(value) or value == ""


def _parsed(value: Any) -> Any:
    """Content of a text read as JSON, and the numbers of an array; anything else as it is."""
    value = _list(value)
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError(f"{_FORMS}, got the text {value!r:.60}, which is no JSON") from None


def _list(value: Any) -> Any:
    """An array's or a NumPy number's values in Python's types; anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def _checked(context: str, text: Any, value: Any) -> int:
    """The start of an answer. Raises :class:`ValueError` if ``text`` is not in ``context`` there."""
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"an answer should be a text, and is {text!r:.60}")
    if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
        raise ValueError(f"the start of {text!r:.60} should be a number of characters, and is {value!r:.60}")
    start = int(value)
    if start >= 0 and context[start : start + len(text)] == text:
        return start
    place = context.find(text)
    where = f"it is at {place}" if place >= 0 else "it is nowhere in the context"
    raise ValueError(f"{text!r:.60} is not at character {start} of the context (counted in characters); {where}")
