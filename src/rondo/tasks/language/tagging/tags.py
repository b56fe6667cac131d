"""Tags of words, and the entities that they stand for. Inside Rondo they are always those of IOB2.

Sources: Ramshaw and Marcus 1995 (IOB1), Tjong Kim Sang and Veenstra 1999 (IOB2). An entity is (first word, end, type).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

Entity: TypeAlias = tuple[int, int, str]
Scheme: TypeAlias = Literal["IOB2", "IOB1", "IO", "BIOES"]

OUTSIDE = "O"
_MARKS = {"IOB2": "BI", "IOB1": "BI", "IO": "I", "BIOES": "BIES"}
_BILOU = {"L": "E", "U": "S"}
_MARKED = re.compile(r"([BIESLU])-(.+)", re.DOTALL)


def scheme_of(tags: Iterable[str]) -> Scheme:
    """The scheme of all tags of a data set: BIOES (or BILOU, which is the same by other letters) where one says the end
    of an entity or a single word; IOB2 where one says a beginning; else IO, also of bare types. IOB1 looks like IOB2,
    so it is never found."""
    marks = {match[1] for tag in tags if (match := _MARKED.fullmatch(tag))}
    return "BIOES" if marks & set("ESLU") else "IOB2" if "B" in marks else "IO"


def entities_of(tags: Sequence[str], scheme: Scheme) -> list[Entity]:
    """The entities of a row, in their order. IOB1 has no broken sequence, so what a model predicts is read by it, as
    ``seqeval`` does by default. Raises ValueError with the word, from 1, of a tag that the scheme does not allow."""
    entities: list[Entity] = []
    going: str | None = None  # the type that the next word may go on with
    for place, tag in enumerate(tags):
        mark, kind = _parts(tag, scheme, place)
        goes_on = mark in "IE" and kind == going
        if scheme == "BIOES" and going is not None and not goes_on:
            raise ValueError(f"{tags[place - 1]!r} of word {place} has no end: {tag!r} follows, not 'E-{going}'")
        if scheme in ("IOB2", "BIOES") and mark in "IE" and not goes_on:
            before = f"follows {tags[place - 1]!r}" if place else "is the row's first"
            raise ValueError(f"{tag!r} of word {place + 1} {before}: an entity begins with 'B-{kind}'")
        if goes_on:
            entities[-1] = (entities[-1][0], place + 1, kind)
        elif mark != OUTSIDE:
            entities.append((place, place + 1, kind))
        going = kind if mark in "BI" else None
    if scheme == "BIOES" and going is not None:
        raise ValueError(f"{tags[-1]!r} of word {len(tags)}, the last one, has no end: write 'E-{going}'")
    return entities


def _parts(tag: str, scheme: Scheme, place: int) -> tuple[str, str]:
    """The mark of a tag and its type, which may be bare under IO."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    match = _MARKED.fullmatch(tag)
    mark, kind = match.groups() if match else ("", tag)
    mark = _BILOU.get(mark, mark) if scheme == "BIOES" else mark
    if scheme == "IO" and mark not in ("B", "I"):
        return "I", tag
    if not mark or mark not in _MARKS[scheme]:
        allowed = ", ".join(f"'{sign}-...'" for sign in _MARKS[scheme])
        raise ValueError(f"{tag!r} of word {place + 1} is not a tag of {scheme}, which has 'O', {allowed}")
    return mark, kind


def tags_of(entities: Iterable[Entity], count: int) -> list[str]:
    """The tags of ``count`` words in IOB2."""
    tags = [OUTSIDE] * count
    for first, end, kind in entities:
        tags[first:end] = [f"B-{kind}", *[f"I-{kind}"] * (end - first - 1)]
    return tags


def classes_of(types: Iterable[str]) -> tuple[str, ...]:
    """The classes of a model that finds entities of ``types``: all tags of IOB2."""
    return (OUTSIDE, *(f"{mark}-{kind}" for kind in sorted(set(types)) for mark in "BI"))


def types_of(classes: Iterable[str]) -> list[str]:
    """The types of which ``classes`` have the beginning."""
    return [name[2:] for name in classes if name.startswith("B-")]
