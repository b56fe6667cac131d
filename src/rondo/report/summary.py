"""The numbers at the end of a run, from its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def totals(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Bytes, failures and skipped rounds, summed over all rounds. ``history``: the lines of ``metrics.jsonl``."""
    exchanges = max(1, sum(r["sampled"] for r in history))
    up, down, first = (sum(r[key] for r in history) for key in ("bytes_up", "bytes_down", "bytes_first_contact"))
    return {
        "bytes": {
            "up": up,
            "down": down,
            "first_contact": first,
            "up_per_client_round": up / exchanges,
            "down_per_client_round": (down - first) / exchanges,
        },
        "failed_clients": sum(len(r["failed"]) for r in history),
        "skipped_rounds": sum(r["skipped"] is not None for r in history),
    }


def better(
    best: Mapping[str, Any] | None, record: Mapping[str, Any], metric: str, *, higher_is_better: bool
) -> Mapping[str, Any] | None:
    """The best score of ``metric`` on the common test set, with its round: ``best``, or the score in ``record`` if that
    is better."""
    scores: Mapping[str, Any] = next(iter(record["scores"].values()), {})
    value = scores.get(metric)
    if not isinstance(value, float):
        return best
    if best is None or (value > best[metric] if higher_is_better else value < best[metric]):
        return {"rounds": record["round"] + 1, metric: value}
    return best
