"""Files in LEAF's form, and vectors of words, for tests."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

Users = Mapping[str, tuple[list[Any], list[Any]]]
"""The x and y of each user."""


def write_leaf(path: Path, users: Users) -> Path:
    """Write a file as LEAF's ``data_to_json.py`` does; return its path."""
    tree = {
        "users": list(users),
        "num_samples": [len(y) for _, y in users.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree), encoding="utf-8")
    return path


def femnist(count: int, rows: int, first: int = 0, seed: int = 0) -> Users:
    """Users with letters of three classes, as FedProx's ``my_sample.py`` writes them."""
    draw = random.Random(f"{first} {seed}")
    return {
        f"f_{user:05d}": (
            [[round(draw.random(), 3) for _ in range(784)] for _ in range(rows)],
            [float((user + row % 3) % 10) for row in range(rows)],
        )
        for user in range(first, first + count)
    }


def sent140(count: int, rows: int, first: int = 0, seed: int = 0) -> Users:
    """Users with tweets, as LEAF's ``data_to_json.py`` writes them: id, date, query, user, text."""
    draw = random.Random(f"{first} {seed}")
    users = {}
    for user in range(first, first + count):
        name, answers = f"user{user}", [row % 2 for row in range(rows)]
        texts = [f"{draw.choice(('so', 'very'))} {('bad', 'good')[y]} day" for y in answers]
        users[name] = ([[str(n), "Mon Apr 06", "NO_QUERY", name, t] for n, t in enumerate(texts)], answers)
    return users


def write_vectors(path: Path, words: str = "so very good bad day", dimensions: int = 6) -> Path:
    """Write random vectors in GloVe's form; return the file's path."""
    draw = random.Random(0)
    lines = (f"{word} {' '.join(f'{draw.gauss(0, 1):.4f}' for _ in range(dimensions))}\n" for word in words.split())
    path.write_text("".join(lines), encoding="utf-8")
    return path
