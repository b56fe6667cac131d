"""Questions about made-up sentences that praise or blame a film, for tests of whole runs."""

from __future__ import annotations

import random
from typing import Any

from small_runs import BAD, GOOD, NEUTRAL

TASK = {
    **dict.fromkeys(("text", "label")),
    "kind": "question-answering",
    "context": "context",
    "question": "question",
    "answers": "answers",
    "max_length": 32,
    "stride": 10,
    "max_answer_tokens": 3,
}


def asked(count: int, seed: int = 0, *, unanswerable: bool = False) -> list[dict[str, Any]]:
    """Questions whose answer is the one word of praise or blame in 6 to 45 words; in every third none, if they may be
    unanswerable."""
    draw, rows = random.Random(seed), []
    for i in range(count):
        words = draw.choices(NEUTRAL, k=draw.randint(6, 45))
        answers: dict[str, list[Any]] = {"text": [], "answer_start": []}
        if not (unanswerable and i % 3 == 0):
            place = draw.randrange(len(words))
            words[place] = draw.choice(GOOD + BAD)
            answers = {"text": [words[place]], "answer_start": [len(" ".join([*words[:place], ""]))]}
        rows.append({"context": " ".join(words), "question": "was the film", "answers": answers, "who": f"s{i % 3}"})
    return rows
