"""Rows of made-up sentences with praise and blame as entities, in every form of file."""

from __future__ import annotations

import random
from typing import Any

from rondo.tasks.language.tagging.tags import Entity, entities_of, tags_of
from small_runs import BAD, GOOD, NEUTRAL

TASK: dict[str, Any] = {
    **dict.fromkeys(("text", "label")),
    "kind": "token-classification",
    "tokens": "tokens",
    "tags": "tags",
    "max_length": 16,
    "stride": 4,
}
CLASSES = ["O", "B-BAD", "I-BAD", "B-GOOD", "I-GOOD"]


def tagged(count: int, seed: int = 0, longest: int = 30) -> list[dict[str, Any]]:
    """Sentences of 4 to ``longest`` words. An entity is a word of praise or of blame; "fine" and "poor" go on with
    one, so that a model learns the tags from the words alone."""
    draw, rows = random.Random(seed), []
    for i in range(count):
        entities: list[Entity] = []
        words: list[str] = []
        size = draw.randint(4, longest)
        while len(words) < size:
            words += draw.choices(NEUTRAL, k=draw.randint(1, 3))
            kind, found = draw.choice((("GOOD", GOOD), ("BAD", BAD)))
            run = [draw.choice(found[:2]), *found[2 : draw.randint(2, 3)]]
            entities.append((len(words), len(words) + len(run), kind))
            words += run
        rows.append({"tokens": words, "tags": tags_of(entities, len(words)), "who": f"site {i % 3}"})
    return rows


def with_spans(row: dict[str, Any]) -> dict[str, Any]:
    """The same row as a text and its spans of characters."""
    starts = [len(" ".join([*row["tokens"][:i], ""])) for i in range(len(row["tokens"]))]
    spans = [
        {"start": starts[first], "end": starts[end - 1] + len(row["tokens"][end - 1]), "label": kind}
        for first, end, kind in entities_of(row["tags"], "IOB2")
    ]
    return {"text": " ".join(row["tokens"]), "spans": spans, "who": row["who"]}
