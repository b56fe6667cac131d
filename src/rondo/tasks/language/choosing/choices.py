"""The choices of a row and its answer, as data sets write them, and as examples: the prompt with the right choice, to
train on, and all choices, to score."""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

from rondo.config.inputs import cell_text, plain_name
from rondo.tasks.language.text import TextExample, TokenStore
from rondo.tasks.row_checks import Row, is_missing, text_problem
from rondo.tasks.task import Store

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


_FORMAT = re.compile(r"Answer format:\s*(\S+)\s*$")


def choices_of(row: Row, columns: str | Sequence[str]) -> list[str]:
    """The texts of a row's choices: a list in one column, or names at the end of its text, or one column each, of which
    the last ones may be empty. Raises ValueError with the reason.

    Source: the commonsense sets of LLM-Adapters (Hu et al. 2023), whose instructions end in
    ``Answer format: answer1/answer2/answer3``.
    """
    if isinstance(columns, str):
        values = row[columns]
        if isinstance(values, str) and (listed := _FORMAT.search(values)):
            values = listed[1].split("/")
        if not isinstance(values, list | tuple):
            raise ValueError(
                f"expected a list of choices, or a text with 'Answer format: a/b' at its end, got {_end(values)}"
            )
    else:
        values = [row[column] for column in columns]
        while values and (is_missing(values[-1]) or values[-1] == ""):
            values.pop()
    texts = [cell_text(v) if isinstance(v, Real) and not is_missing(v) else v for v in values]
    if len(texts) < 2:
        raise ValueError(f"{len(texts)} choices; there should be two or more")
    for place, text in enumerate(texts):
        if (fault := text_problem({"choice": text}, place, "choice")) is not None:
            raise ValueError(f"choice {LETTERS[place] if place < len(LETTERS) else place}: {fault.reason}")
    return texts


def _end(value: Any) -> str:
    """The value, or the end of a long one."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"...{shown[-60:]}"


def right_of(answer: Any, choices: Sequence[str], written: str | None = None) -> int:
    """The index of the right choice. ``answer`` is its text, its letter (A is the first), or its number (0 is the
    first); ``written`` says which ("text", "letter", "number"). Raises ValueError with the reason, also if it can be
    read in two ways: the letter of one choice may be the text of another."""
    name = cell_text(answer) if isinstance(answer, str | Real) else ""
    number = plain_name(name)
    known = LETTERS[: len(choices)]
    readings = {
        "text": choices.index(name) if name in choices else None,
        "letter": known.index(name) if len(name) == 1 and name in known else None,
        "number": int(number) if re.fullmatch("[0-9]{1,4}", number) and int(number) < len(choices) else None,
    }
    places = {reading: i for reading, i in readings.items() if i is not None and written in (None, reading)}
    if len(set(places.values())) == 1:
        return next(iter(places.values()))
    if places:
        listed = " and ".join(f"the {reading} of {choices[i]!r:.40}" for reading, i in places.items())
        raise ValueError(f"{answer!r} is {listed}: say which with task.answer_is")
    forms = "the text of a choice, its letter (A is the first) or its number (0 is the first)"
    if written is not None:
        forms = f"the {written} of a choice, as task.answer_is says"
    raise ValueError(f"{answer!r:.60} is not {forms}; there are {len(choices)} choices")


def first_mentioned(text: str, candidates: Sequence[str]) -> int | None:
    """The index of the candidate that occurs first in ``text``, of several at one place the longest; None without any.

    Source: LLM-Adapters (Hu et al. 2023), ``commonsense_evaluate.py``: ``re.findall("true|false", text)[0]``. A single
    letter counts as a word of its own only.
    """
    order = sorted((i for i, c in enumerate(candidates) if c), key=lambda i: -len(candidates[i]))
    words = (candidates[i] for i in order)
    patterns = [rf"\b{c}\b" if len(c) == 1 and c.isalpha() else re.escape(c) for c in words]
    match = re.search("|".join(f"({p})" for p in patterns), text) if patterns else None
    return None if match is None or match.lastindex is None else order[match.lastindex - 1]


@dataclass(frozen=True, kw_only=True)
class Choice(TextExample):
    """The prompt with one of the choices, to be scored. Only the choice's tokens have a target."""

    row: int
    """The number of its row among those that are scored."""
    place: int
    """Its number among the row's choices."""
    right: bool
    size: int
    """Bytes of the choice's text."""


@dataclass(frozen=True, kw_only=True)
class ChoiceExample(TextExample):
    """A row: the prompt with the right choice, and the end token, to be trained on."""

    prompt: int
    """Number of tokens of the prompt."""
    choices: tuple[tuple[int, ...], ...]
    """Token ids of every choice after the prompt."""
    sizes: tuple[int, ...]
    """Bytes of every choice's text."""
    right: int
    """Index of the right choice."""

    def parts(self, row: int, ignored: int) -> Iterator[Choice]:
        """Every choice after the prompt. ``ignored``: the target of a token without a loss."""
        prompt = self.ids[: self.prompt]
        for number, (choice, size) in enumerate(zip(self.choices, self.sizes, strict=True)):
            target = (ignored,) * len(prompt) + choice
            yield Choice(prompt + choice, target, row=row, place=number, right=number == self.right, size=size)


class ChoiceStore(Store):
    """All examples of a run, in flat arrays (:class:`rondo.tasks.language.text.TokenStore`)."""

    def __init__(self) -> None:
        self._rows, self._choices = TokenStore(), TokenStore()
        self._ends, self._prompts, self._right = array("q", [0]), array("i"), array("i")

    def add(self, examples: Iterable[ChoiceExample]) -> range:
        first = len(self._right)
        for example in examples:
            self._rows.add([example])
            added = self._choices.add(TextExample(c, s) for c, s in zip(example.choices, example.sizes, strict=True))
            self._ends.append(added.stop)
            self._prompts.append(example.prompt)
            self._right.append(example.right)
        return range(first, len(self._right))

    def __getitem__(self, number: int) -> ChoiceExample:
        row = self._rows[number]
        choices = [self._choices[i] for i in range(self._ends[number], self._ends[number + 1])]
        return ChoiceExample(
            row.ids,
            row.target,
            prompt=self._prompts[number],
            choices=tuple(c.ids for c in choices),
            sizes=tuple(c.target for c in choices if isinstance(c.target, int)),
            right=self._right[number],
        )

    def cost(self, number: int) -> int:
        return self._rows.cost(number)

    def account(self) -> dict[str, int]:
        """Tokens are those that are trained on: the right choices'."""
        return self._rows.account()

    def sha256(self) -> str:
        digest = hashlib.sha256((self._rows.sha256() + self._choices.sha256()).encode())
        for part in (self._ends, self._prompts, self._right):
            digest.update(len(part).to_bytes(8) + part.tobytes())
        return digest.hexdigest()
