"""Windows of long rows: each word is trained and scored in one of them, at its first token."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rondo.tasks.language.tagging.words import Words
from rondo.tasks.language.text import TextExample, TokenStore

IGNORED = -100  # torch's index for targets without a loss
NO_TOKEN = -1
"""The place of a word without a token of its own: it goes with the word before."""


@dataclass(frozen=True)
class Window(TextExample):
    """A part of a row. ``target``: 1 for the first window of a row, else 0; then the place among ``ids`` and the class
    of each of its words, in their order."""

    number: int = 0
    """Its number among the windows that are scored."""

    @property
    def _numbers(self) -> tuple[int, ...]:
        assert isinstance(self.target, tuple)
        return self.target

    @property
    def begins(self) -> int:
        return self._numbers[0]

    @property
    def places(self) -> tuple[int, ...]:
        return self._numbers[1::2]

    @property
    def classes(self) -> tuple[int, ...]:
        return self._numbers[2::2]


def windows(tokenizer: Any, rows: Sequence[Words], size: int, stride: int) -> list[list[Window]]:
    """The windows of each row, of at most ``size`` tokens, of which neighbours share ``stride``: the first half of
    these has its words in the one window, the rest in the other. All classes are 0. A row of which no word has a token
    has no window."""
    if not rows:
        return []
    coded = tokenizer(
        [row.text for row in rows],
        truncation=True,
        max_length=size,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    numbers: list[list[int]] = [[] for _ in rows]
    for number, row in enumerate(coded["overflow_to_sample_mapping"]):
        numbers[row].append(number)
    if tokenizer.truncation_side == "left":
        numbers = [of_row[::-1] for of_row in numbers]
    return [_of_row(coded, of_row, words, stride) for of_row, words in zip(numbers, rows, strict=True)]


def _of_row(coded: Any, numbers: Sequence[int], words: Words, stride: int) -> list[Window]:
    """The windows of a row. ``numbers``: theirs in ``coded``, from the beginning of the row to its end."""
    tokens: list[tuple[int, int]] = []  # the window of each token of the row that has its words, and the place in it
    offsets: list[tuple[int, int]] = []
    for number in numbers:
        inside = [place for place, part in enumerate(coded.sequence_ids(number)) if part is not None]
        shared = stride if tokens else 0
        tokens[len(tokens) - shared // 2 :] = [(number, place) for place in inside[shared - shared // 2 :]]
        offsets += [coded["offset_mapping"][number][place] for place in inside[shared:]]
    found = list(_first_tokens(offsets, words))
    number = next((tokens[token][0] for token in found if token is not None), -1)
    targets: dict[int, list[int]] = {}
    for token in found if number >= 0 else ():
        place = NO_TOKEN
        if token is not None:
            number, place = tokens[token]
        targets.setdefault(number, []).extend((place, 0))
    segments = coded.get("token_type_ids")
    return [
        Window(
            tuple(coded["input_ids"][number]),
            (int(count == 0), *target),
            tuple(segments[number]) if segments is not None else None,
        )
        for count, (number, target) in enumerate(targets.items())
    ]


def _first_tokens(offsets: Iterable[tuple[int, int]], words: Words) -> Iterator[int | None]:
    """The first token of each word that no word before has; None where there is none. ``offsets``: the first character
    of each token and its end."""
    tokens = iter([(number, *place) for number, place in enumerate(offsets) if place[0] < place[1]])
    token = next(tokens, None)
    for start, end in words.ranges:
        while token is not None and token[2] <= start:
            token = next(tokens, None)
        if token is None or token[1] >= end:
            yield None
        else:
            yield token[0]
            token = next(tokens, None)


class WindowStore(TokenStore):
    """All windows of a run."""

    def __init__(self) -> None:
        super().__init__()
        self._rows = self._words = self._without = 0

    def add(self, examples: Iterable[Any]) -> range:
        added = list(examples)
        for window in added:
            self._rows += window.begins
            self._words += len(window.places)
            self._without += window.places.count(NO_TOKEN)
        return super().add(added)

    def __getitem__(self, number: int) -> Window:
        example = super().__getitem__(number)
        return Window(example.ids, example.target, example.segments)

    def account(self) -> dict[str, int]:
        """Tokens are those of all windows, which overlap."""
        counts = {"rows": self._rows, "windows": len(self._ends) - 1}
        return {**super().account(), **counts, "words": self._words, "words_without_token": self._without}
