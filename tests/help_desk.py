"""Chats of three help desks, as docs/how-to/chats.md reads them."""

from __future__ import annotations

import json
from pathlib import Path

DESKS = {
    "berlin": ("invoice", "refund", "contract"),
    "kiel": ("parcel", "delivery", "pallet"),
    "ulm": ("password", "login", "profile"),
}
ASKED = ("Where is my {}?", "My {} is wrong.", "Please change my {}.", "I lost my {}.")


def chats(per_desk: int, first: int = 0) -> list[dict[str, object]]:
    """Chats of two questions and answers: ``per_desk`` of each desk, from ``first`` on, of twelve that differ."""
    rows: list[dict[str, object]] = []
    for desk, things in DESKS.items():
        for i in range(first, first + per_desk):
            thing, asked = things[i % 3], ASKED[i // 3 % 4]
            said = [
                ("system", "You answer for the help desk."),
                ("user", asked.format(thing)),
                ("assistant", f"Dear customer, the desk in {desk.title()} looks after your {thing}."),
                ("user", "When do I hear from you?"),
                ("assistant", f"Dear customer, {desk.title()} answers about a {thing} within {2 + i % 3} days."),
            ]
            rows.append({"desk": desk, "messages": [{"role": role, "content": text} for role, text in said]})
    return rows


def write_chats(folder: Path) -> None:
    """Write ``chats.jsonl`` and ``chats-test.jsonl``, none of whose chats is in the other."""
    for name, rows in (("chats.jsonl", chats(9)), ("chats-test.jsonl", chats(3, first=9))):
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
