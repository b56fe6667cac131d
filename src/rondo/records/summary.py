"""The numbers at the end of a run, from its records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rondo.records.curve import score


def totals(history: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Bytes, failures and skipped rounds, summed over all rounds, and costs. ``history``: the lines of
    ``metrics.jsonl``."""
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
        "costs": costs(history),
        "failed_clients": sum(len(r["failed"]) for r in history),
        "skipped_rounds": sum(r["skipped"] is not None for r in history),
    }


def costs(history: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Costs beside bytes: the mean seconds of an aggregation (RoLoRA, Table 15), the mean operations of a client in a
    round (FLoRG, Table 8; None if a round has none), and the largest memory of an aggregation, of the process and on
    its accelerator (None if no round has it). ``history``: the lines of ``metrics.jsonl``."""

    def known(key: str) -> list[Any]:
        return [r[key] for r in history if r.get(key) is not None and r["skipped"] is None]

    seconds, clients = known("server_seconds"), sum(r["clients"] for r in history)
    flops: list[Any] = [r.get("client_flops") for r in history if r["clients"]]
    return {
        "server_seconds_per_round": sum(seconds) / len(seconds) if seconds else None,
        "flops_per_client_round": sum(flops) / clients if flops and None not in flops else None,
        **{
            key: max(known(key), default=None)
            for key in ("server_memory_bytes", "process_memory_bytes", "device_memory_bytes")
        },
    }


def best_so_far(
    best: Mapping[str, Any] | None, record: Mapping[str, Any], metric: str, *, higher_is_better: bool, at_clients: bool
) -> Mapping[str, Any] | None:
    """The best score of ``metric`` so far, its round, and the number of scores since: ``best`` after the round of
    ``record``.

    ``at_clients``: whether the score is the clients' mean on their own rows, in place of the one on the test set. Where
    they have both, validation rows choose, and test rows do not.
    """
    kinds = ("validation", "clients", "personal") if at_clients else ("global", "cold_start")
    value = score(record["scores"], kinds, metric)
    if not isinstance(value, float):
        return best
    if best is None or (value > best[metric] if higher_is_better else value < best[metric]):
        return {"rounds": record["round"] + 1, metric: value, "scores_since": 0}
    return {**best, "scores_since": best["scores_since"] + 1}
