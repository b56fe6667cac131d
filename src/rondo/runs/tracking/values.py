"""A round as trackers take it: numbers by name. Imports no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

_PLAIN = ("loss", "lr")
_OF_TURNOUT = ("clients", "bytes_up", "bytes_down", "seconds", "train_seconds", "server_seconds")
"""Numbers that follow the number of clients in the round."""
_OF_CLIENTS = ("mean", "weighted_mean", "worst_tenth")
_LISTED = 100
"""Longer lists of a configuration, such as a rank per client, are counted."""
_NOT_THE_NAME = re.compile(r"[^\w /.:-]", re.ASCII)
"""Characters that a tracker may refuse in a name."""


def values(record: Mapping[str, Any], *, secret_turnout: bool = False) -> dict[str, float]:
    """The numbers of a line of ``metrics.jsonl`` that are finite. Those of single clients are left out, and with
    ``secret_turnout`` those of how many took part: a tracker may be anywhere."""
    return {
        _NOT_THE_NAME.sub("_", name): float(value)
        for name, value in _numbers(record, secret_turnout)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _numbers(record: Mapping[str, Any], secret_turnout: bool) -> Iterator[tuple[str, Any]]:
    yield "round", record["round"] + 1
    if not secret_turnout:
        yield "failed", len(record["failed"])
        yield from ((key, record.get(key)) for key in _OF_TURNOUT)
    yield from ((key, record.get(key)) for key in _PLAIN)
    if record.get("epsilon_valid"):
        yield "epsilon", record["epsilon"]
    yield from ((f"measures/{name}", value) for name, value in record.get("measures", {}).items())
    for kind, scores in record["scores"].items():
        yield from _scores(kind, scores)
    diagnostics = record.get("diagnostics") or {}
    yield from ((f"diagnostics/{name}", value) for name, value in diagnostics.items())


def _scores(place: str, scores: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in scores.items():
        if name == "per_client":
            continue
        if not isinstance(value, Mapping):
            yield f"{place}/{name}", value
        elif place == "more_tests":
            yield from _scores(f"test {name}", value)
        else:
            yield from ((f"{place}/{name}/{part}", value.get(part)) for part in _OF_CLIENTS)


def settings(config: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """A configuration by key path, as a tracker takes it: without paths of this machine, of which the end is kept."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        place = f"{path}.{key}" if path else key
        if isinstance(value, Mapping):
            found |= settings(value, place)
        elif isinstance(value, list) and len(value) > _LISTED:
            found[place] = f"{len(value)} values"
        elif value is not None:
            found[place] = _named(value) if isinstance(value, str) else value
    return found


def _named(text: str) -> str:
    for path in (PurePosixPath(text), PureWindowsPath(text)):
        if path.is_absolute():
            return path.name
    return text
