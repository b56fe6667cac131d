"""Records of rounds, for tests that compare runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def timeless(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without what differs between runs of the same bits: seconds, and memory in use."""
    return {k: v for k, v in record.items() if not k.endswith(("seconds", "memory_bytes"))}


def line(number: int, **changes: Any) -> dict[str, Any]:
    """A line of metrics.jsonl with what every one has."""
    counts = {"sampled": 1, "clients": 1, "bytes_up": 0, "bytes_down": 0, "bytes_first_contact": 0}
    none = {"failed": [], "rejected": {}, "skipped": None, "loss": None, "scores": {}, "seconds": 0.5}
    return {"round": number, **counts, **none, **changes}


def summary(rounds: int, **changes: Any) -> dict[str, Any]:
    """A summary.json with what every one has."""
    return {
        "primary": "loss",
        "rounds": rounds,
        "before": {},
        "after": {},
        "measures": {"before": {}, "after": {}},
        **changes,
    }
