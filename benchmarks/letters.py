"""Seconds per MB that Flower takes to lay a letter out for the wire and to read it back, by the kind of record.

python benchmarks/letters.py
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

MB, REPEATS = 2, 7


def seconds(record: Callable[[], ConfigRecord | ArrayRecord], size: int) -> tuple[list[float], list[float], int]:
    """Seconds for a letter's way out and back in, one per repeat, and the bytes around the letter."""
    out, back = [], []
    overhead = 0
    for _ in range(REPEATS):
        start = time.perf_counter()
        metadata = Metadata(1, "", 1, 2, "", "", 0.0, 1.0, "train")
        message = make_message(metadata, content=RecordDict({"rondo": record()}))
        number = message.object_id
        get_object_tree(message)
        parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        out.append(time.perf_counter() - start)
        overhead = sum(map(len, parts.values())) - size
        start = time.perf_counter()
        inflate_object_from_contents(number, parts)
        back.append(time.perf_counter() - start)
    return out, back, overhead


def main() -> None:
    letter = os.urandom(MB * 10**6)
    array = Array("uint8", (len(letter),), "rondo.letter", letter)
    for record in (lambda: ConfigRecord({"letter": letter}), lambda: ArrayRecord({"letter": array})):
        out, back, overhead = seconds(record, len(letter))
        print(type(record()).__name__, end=": ")
        for name, times in (("out", out), ("back", back)):
            low, middle, high = min(times) / MB, statistics.median(times) / MB, max(times) / MB
            print(f"{name} {middle:.4f} s/MB ({low:.4f} to {high:.4f})", end=", ")
        print(f"{overhead} bytes around it")


if __name__ == "__main__":
    main()
