"""A row's words and entities, from lists of tokens and tags or from a text and its spans of characters."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from typing import Any

from rondo.config.inputs import TaskConfig
from rondo.tasks.language.tagging.tags import Entity, Scheme, entities_of, scheme_of
from rondo.tasks.row_checks import Row, is_missing

_UNSPACED = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF)),  # Thai and Lao, Burmese, Khmer
    *((0x3040, 0x30FF), (0x3400, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)),  # Japanese and Chinese
)
"""Characters of scripts without spaces, each of which is a word."""


@dataclass(frozen=True)
class Columns:
    """The columns of the rows. Either ``tokens`` and ``tags``, or ``text`` and ``spans``.

    ``scheme``: of the tags; None takes each row's own.
    ``classes``: the names of numbers in the place of tags.
    """

    tokens: str | None
    tags: str | None
    text: str | None
    spans: str | None
    scheme: Scheme | None
    classes: Sequence[str] | None

    @classmethod
    def of(cls, config: TaskConfig) -> Columns:
        text = config.text if isinstance(config.text, str) else None
        return cls(config.tokens, config.tags, text, config.spans, config.scheme, config.labels)

    @property
    def target(self) -> str:
        """The column that says the entities; empty if it is not read."""
        return self.tags or self.spans or ""

    def words(self, row: Row) -> Words:
        """The words of ``row``. Raises ValueError if there are none."""
        if self.tokens is None:
            text = str(row[self.text or ""])
            return Words(text, tuple(_ranges(text)))
        words = _listed(row[self.tokens], "tokens")
        for place, word in enumerate(words):
            if not isinstance(word, str) or not word.strip():
                raise ValueError(f"token {place + 1} should be a text, and is {word!r:.60}")
        ends = list(accumulate(len(word) + 1 for word in words))
        starts = [end - len(word) - 1 for word, end in zip(words, ends, strict=True)]
        return Words(" ".join(words), tuple((s, e - 1) for s, e in zip(starts, ends, strict=True)))

    def names(self, row: Row) -> list[str]:
        """The tags of ``row`` by name. Raises ValueError."""
        tags = _listed(row[self.tags or ""], "tags")
        return [self._name(tag, place) for place, tag in enumerate(tags)]

    def _name(self, tag: Any, place: int) -> str:
        if isinstance(tag, str) and tag.strip():
            return tag
        if isinstance(tag, int) and not isinstance(tag, bool):
            if self.classes is None:
                raise ValueError(f"tag {place + 1} is the number {tag}: name the tags, in order, in task.labels")
            if 0 <= tag < len(self.classes):
                return self.classes[tag]
        raise ValueError(f"tag {place + 1} should be a text or a number of task.labels, and is {tag!r:.60}")

    def spans_of(self, row: Row) -> list[tuple[int, int, str]]:
        """The spans of ``row`` by ascending start, without the blanks around them. An empty cell has none. Raises
        ValueError with the reason if the column does not say them."""
        text, value = str(row[self.text or ""]), row[self.spans or ""]
        empty = is_missing(value) or (isinstance(value, str) and not value)
        found = sorted(_span(text, span) for span in ([] if empty else _listed(value, "spans")))
        for (_, end, kind), (start, _, other) in pairwise(found):
            if start < end:
                raise ValueError(
                    f"the spans of {kind!r} and {other!r} overlap at character {start}: a word has one type"
                )
        return found

    def entities(self, row: Row, words: Words) -> list[Entity]:
        """The entities of ``row``. Raises ValueError with the reason if the column does not say them."""
        if self.tags is None:
            return words.within(self.spans_of(row))
        tags = self.names(row)
        if len(tags) != len(words.ranges):
            raise ValueError(f"{len(tags)} tags of {len(words.ranges)} tokens: each token needs one")
        return entities_of(tags, self.scheme or scheme_of(tags))


@dataclass(frozen=True)
class Words:
    """The words of a row."""

    text: str
    ranges: tuple[tuple[int, int], ...]
    """The first character of each word and its end."""

    def within(self, spans: Sequence[tuple[int, int, str]]) -> list[Entity]:
        """The entities of ``spans`` of characters, by ascending start. A span that begins or ends within a word takes
        the whole word. Raises ValueError for two in one word."""
        entities: list[Entity] = []
        for start, end, kind in spans:
            touched = [n for n, (first, last) in enumerate(self.ranges) if first < end and start < last]
            if entities and touched[0] < entities[-1][1]:
                first, last = self.ranges[touched[0]]
                raise ValueError(f"two spans share the word {self.text[first:last]!r:.60} at character {first}")
            entities.append((touched[0], touched[-1] + 1, kind))
        return entities


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    """The words of a text: runs of letters, digits and marks, and every other character that is not a blank."""
    for word, run in groupby(enumerate(text), lambda pair: _kind(*pair)):
        places = [place for place, _ in run]
        if word != "blank":
            yield places[0], places[-1] + 1


def _kind(place: int, sign: str) -> str | int:
    if sign.isspace():
        return "blank"
    within = sign == "_" or unicodedata.category(sign)[0] in "LMN"
    return "word" if within and not any(a <= ord(sign) <= b for a, b in _UNSPACED) else place


def _listed(value: Any, what: str) -> list[Any]:
    """A list, an array, or a list as JSON, as in a CSV file."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise ValueError(f"expected a list of {what}, got the text {value!r:.60}, which is not JSON") from None
    if not isinstance(value, list | tuple) or (what == "tokens" and not value):
        raise ValueError(f"expected a list of {what}, got {value!r:.60}")
    return list(value)


def _span(text: str, span: Any) -> tuple[int, int, str]:
    """A mapping with ``start``, ``end`` and ``label``, or these three in a list."""
    parts = [span.get(key) for key in ("start", "end", "label")] if isinstance(span, Mapping) else span
    if not isinstance(parts, list | tuple) or len(parts) != 3:
        raise ValueError(f'expected {{"start", "end", "label"}}, got {span!r:.60}')
    start, end, kind = parts
    if not isinstance(kind, str) or not kind.strip():
        raise ValueError(f"the label of a span should be a text, and is {kind!r:.60}")
    if any(isinstance(place, bool) or not isinstance(place, int) for place in (start, end)):
        raise ValueError(f"start and end of a span should be numbers of characters, and are {start!r}, {end!r:.60}")
    if not 0 <= start < end <= len(text):
        raise ValueError(f"the span {start} to {end} is not in the text, which has {len(text)} characters")
    covered = text[start:end]
    if not covered.strip():
        raise ValueError(f"the span {start} to {end} has blanks alone")
    start += len(covered) - len(covered.lstrip())
    return start, start + len(covered.strip()), kind
