"""Letters and their kinds.

- ``plan``: the plan of a run, to a site that has just connected (:mod:`rondo.federation.plan`).
- ``round``: a round's work for one client (:mod:`rondo.engine.wire.letters`).
- ``ready``, ``masked``, ``unmask``: the three letters of a masked sum (:mod:`rondo.engine.wire.masked`).
- ``end``: the run is over.
"""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, Message, RecordDict

SUMS = ("ready", "masked", "unmask")
"""Kinds of letters of a masked sum, in their order."""
KINDS = {"plan": "query.plan", "round": "train", **{kind: f"query.{kind}" for kind in SUMS}, "end": "query.end"}
"""Flower's type of message for each kind of letter."""

PORT = 9092
"""The port of Flower's SuperLink for SuperNodes."""

PART = 5 * 2**20
"""Bytes of a part, in which letters travel. A shorter part, which may be empty, is the last one."""


@dataclass(frozen=True)
class Letter:
    """A letter that has come to a site. ``kind``: one of :data:`KINDS`, or None."""

    number: str
    kind: str | None
    data: bytes


_RECORD, _FIELD = "rondo", "letter"


def record(letter: bytes) -> RecordDict:
    """``letter`` as the content of a message."""
    # As an array: Flower takes half a second per MB for bytes in a ConfigRecord, and a fiftieth of that here.
    array = Array(dtype="uint8", shape=(len(letter),), stype=_STYPE, data=letter)
    return RecordDict({_RECORD: ArrayRecord({_FIELD: array})})


_STYPE = "rondo.letter"


def content_of(message: Message) -> bytes:
    """The letter in ``message``; empty if there is none."""
    if not message.has_content():
        return b""
    arrays = message.content.array_records.get(_RECORD)
    array = arrays.get(_FIELD) if arrays is not None else None
    return bytes(array.data) if array is not None else b""


def kind_of(message_type: str) -> str | None:
    """The kind of a letter by Flower's type of its message; None where it is none of :data:`KINDS`."""
    return next((kind for kind, of_flower in KINDS.items() if of_flower == message_type), None)
