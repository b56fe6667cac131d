"""TODO"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any


def _score(scores: Mapping[str, Any], kinds: Mapping[str, str], primary: str) -> dict[str, Any] | None:
    """The score of the first of ``kinds`` that there is, and which model it is of; on own rows the clients' mean."""
    for kind, model in kinds.items():
        value = scores.get(kind, {}).get(primary)
        value = value["mean"] if isinstance(value, Mapping) else value
        if value is not None:
            return {"model": model, "score": value}
    return None


def _over(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean, and sample standard deviation (None for fewer than two values); None among the values is left out."""
    there = [v for v in values if v is not None]
    return {
        "mean": statistics.fmean(there) if there else None,
        "sd": statistics.stdev(there) if len(there) > 1 else None,
        "count": len(there),
    }


def _over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One algorithm's runs."""
    found: dict[str, Any] = {"head": runs[0]["head"]}
    for key in ("test", "own_rows"):
        scores = [r[key] for r in runs if r[key] is not None]
        model = scores[0]["model"] if scores else None
        found[key] = {"model": model, **_over([s["score"] for s in scores])}
    return found | {key: _over([r[key] for r in runs]) for key in _NUMBERS}


_NUMBERS = ("bytes_up", "bytes_down", "bytes_first_contact", "train_seconds", "seconds", "interference")


_TEST = {"global": "global", "cold_start": "cold start"}


_OWN = {"clients": "global", "personal": "personal"}
"""Kinds of scores, on the common test set and on each client's own validation rows, and which model each is of."""
