"""Pairs, triplets and scored pairs of made-up sentences, and a model that pools by its first token."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from small_runs import BAD, GOOD, NEUTRAL, save_tiny_bert

TASK: dict[str, Any] = {
    **dict.fromkeys(("text", "label")),
    "kind": "embedding",
    "anchor": "asked",
    "positive": "found",
    "max_length": 24,
}
KINDS = (GOOD, BAD, ("film",), ("plot",))
"""Words of four meanings. A row's two texts have words of one, or of two, meanings."""


def pairs(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Rows whose texts have two kinds of words in common; the negative has one of them."""
    draw, rows = random.Random(seed), []
    for i in range(count):
        first, second, other = draw.sample(KINDS, 3)

        def text(*kinds: tuple[str, ...]) -> str:
            words = [draw.choice(kind) for kind in kinds] + draw.choices(NEUTRAL[3:], k=draw.randint(1, 5))
            draw.shuffle(words)
            return " ".join(words)

        rows.append({"asked": text(first, second), "found": text(first, second), "not": text(first, other)})
        rows[-1]["who"] = f"site {i % 3}"
    return rows


def rated(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Pairs with the share of kinds of words that they have in common."""
    draw = random.Random(seed)
    made = [{**row, "like": 1.0} for row in pairs(count, seed)]
    return [row if draw.random() < 0.5 else {**row, "found": row["not"], "like": 0.3} for row in made]


def save_embedder(folder: Path, pooling: str = "cls", *, unit: bool = True) -> Path:
    """Save a tiny BERT with the files of sentence-transformers."""
    save_tiny_bert(folder)
    kinds = ["Transformer", "Pooling", *(["Normalize"] if unit else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=False))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "mean_sqrt_len_tokens")}
    if pooling == "cls":
        modes["pooling_mode_cls_token"] = True
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))
    return folder
