"""Windows of long contexts, and a store for hundreds of thousands of them."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rondo.tasks.task import Store

IGNORED = -100  # torch's index for targets without a loss


@dataclass(frozen=True, eq=False)
class Question:
    """A row: what all its windows share."""

    number: int
    """Its number among the questions of its task."""
    context: str
    answers: tuple[str, ...]
    """The true answers; empty where none is known, or there is none."""
    spans: array[int]
    """First character, and end, of every token of the context: two numbers per token."""

    def text(self, first: int, last: int) -> str:
        """The context from its token ``first`` to its token ``last``."""
        return self.context[self.spans[2 * first] : self.spans[2 * last + 1]]


@dataclass(frozen=True)
class Window:
    """A question and a part of its context, as one row of tokens."""

    ids: tuple[int, ...]
    question: Question
    first: int
    """Place of the context's first token in ``ids``."""
    tokens: int
    """Number of the context's tokens in ``ids``."""
    skipped: int
    """Number of the context's tokens before them."""
    nothing: int
    """Place of the token that stands for no answer."""
    target: tuple[int, int]
    """Places of the answer's first and last token; those of ``nothing`` where the answer is in another window or there
    is none; :data:`IGNORED` where no window holds it whole."""
    segments: tuple[int, ...] | None = None
    """Segment ids, if the tokenizer gives them."""
    lost: int = 0
    """Number of tokens cut away from the question. A store only counts them."""

    @property
    def cost(self) -> int:
        return len(self.ids)


def row_sizes(windows: Iterable[Window]) -> list[int]:
    """The number of windows of each question; a question's windows lie side by side."""
    sizes: list[int] = []
    before = None
    for window in windows:
        if window.question is before:
            sizes[-1] += 1
        else:
            sizes.append(1)
        before = window.question
    return sizes


class WindowStore(Store):
    """All windows of a run. Ids lie in flat arrays; a context and the characters of its tokens are held once per
    question, and equal contexts once."""

    def __init__(self) -> None:
        self._ids, self._ends, self._segments = array("i"), array("q", [0]), array("b")
        self._places = array("i")
        """For every window: its question here, ``first``, ``tokens``, ``skipped``, ``nothing`` and ``target``."""
        self._questions: list[Question] = []
        self._cut_rows = self._lost_tokens = self._beyond = 0

    def add(self, examples: Iterable[Window]) -> range:
        first = len(self._ends) - 1
        for window in examples:
            if not self._questions or self._questions[-1] is not window.question:
                self._questions.append(window.question)
                self._cut_rows += window.lost > 0
                self._lost_tokens += window.lost
                self._beyond += window.target[0] == IGNORED
            self._ids.extend(window.ids)
            self._ends.append(len(self._ids))
            self._segments.extend(window.segments or ())
            where = (window.first, window.tokens, window.skipped, window.nothing, *window.target)
            self._places.extend((len(self._questions) - 1, *where))
        return range(first, len(self._ends) - 1)

    def __getitem__(self, number: int) -> Window:
        start, end = self._ends[number], self._ends[number + 1]
        question, first, tokens, skipped, nothing, *target = self._places[7 * number : 7 * number + 7]
        segments = tuple(self._segments[start:end]) if self._segments else None
        ids = tuple(self._ids[start:end])
        whose = self._questions[question]
        return Window(ids, whose, first, tokens, skipped, nothing, (target[0], target[1]), segments)

    def cost(self, number: int) -> int:
        return self._ends[number + 1] - self._ends[number]

    def account(self) -> dict[str, int]:
        """Tokens are those of all windows, which overlap."""
        return {
            "rows": len(self._questions),
            "windows": len(self._ends) - 1,
            "rows_cut": self._cut_rows,
            "tokens": len(self._ids) + self._lost_tokens,
            "tokens_lost": self._lost_tokens,
            "answers_beyond_windows": self._beyond,
        }

    def sha256(self) -> str:
        digest = hashlib.sha256()
        arrays: Sequence[array[int]] = (self._ids, self._ends, self._places, self._segments)
        for part in (*arrays, *(question.spans for question in self._questions)):
            digest.update(len(part).to_bytes(8) + part.tobytes())
        for question in self._questions:
            for text in (question.context, *question.answers):
                digest.update(len(text).to_bytes(8) + text.encode())
        return digest.hexdigest()
