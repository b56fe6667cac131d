"""Pairs of answers of which one is better, in the forms of TRL, for tests of whole runs."""

from __future__ import annotations

import random
from typing import Any

from choice_rows import COLOURS

TASK: dict[str, Any] = {**dict.fromkeys(("text", "label")), "kind": "preference", "max_length": 120}
REWARD: dict[str, Any] = {**TASK, "kind": "reward"}
FORMS = ("texts", "conversations", "implicit texts", "implicit conversations", "UltraFeedback")


def preferred(count: int, seed: int = 0, form: str = "texts", *, system: bool = False) -> list[dict[str, Any]]:
    """Questions whose chosen answer is the colour that they name. Answers have different lengths."""
    draw, rows = random.Random(seed), []
    for number in range(count):
        right, wrong = draw.sample(COLOURS, 2)
        asked = f"item {number % 7} is {right}. Which colour is it?"
        answers = [f"It is {right}" + draw.choice(("", " again")), f"It is {wrong}" + draw.choice(("", " and more"))]
        chosen, rejected = (f" {answer}." for answer in answers)
        turns = [{"role": "system", "content": "Answer."}] if system else []
        turns = [*turns, {"role": "user", "content": asked}]
        told = [[{"role": "assistant", "content": answer.strip()}] for answer in (chosen, rejected)]
        row: dict[str, Any] = {"prompt": asked, "chosen": chosen, "rejected": rejected}
        if form == "conversations":
            row = {"prompt": turns, "chosen": told[0], "rejected": told[1]}
        if form in ("implicit conversations", "UltraFeedback"):
            row |= {"chosen": [*turns, *told[0]], "rejected": [*turns, *told[1]]}
        if form == "implicit texts":
            row |= {"chosen": asked + chosen, "rejected": asked + rejected}
        if form.startswith("implicit"):
            del row["prompt"]
        rows.append({**row, "who": f"site {number % 3}"})
    return rows
