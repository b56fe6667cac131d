"""Records of rounds, for tests that compare runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def timeless(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record without what differs between runs of the same bits: seconds, and memory in use."""
    return {k: v for k, v in record.items() if not k.endswith(("seconds", "memory_bytes"))}
