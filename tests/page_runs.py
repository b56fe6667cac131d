"""Runs as a page reads them, made without training: every kind of number is there."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from rondo.config import load
from rondo.privacy.guarantee import sentence
from rondo.records.recorded import Recorded, trained

HOSTILE = "</script><img src=x onerror=alert(1)>\u2028\u202e'\"&amp;<!--\x07\ud800"
"""Everything by which a text could stop being one."""

PRIVACY = {"unit": "client", "adversary": "reader", "delta": 1e-5, "secure_aggregation": False, "simulation": True}
"""What a private run protects, but for epsilon."""

METRICS = ("accuracy", "f1", "matthews", "auc", "loss")


def recorded(
    name: str = "run",
    *,
    algorithm: str = "fedit",
    seed: int = 0,
    rounds: int = 6,
    clients: Sequence[str] = ("ann", "bob", "cid"),
    finished: bool = True,
    private: bool = False,
    personal: bool = False,
    failing: bool = False,
    sets: Sequence[str] = (),
    **changes: Any,
) -> Recorded:
    """A run. ``changes``: other fields than these."""
    draw = random.Random(ascii(name) + str(seed))
    keys = {"seed": seed, "rounds": rounds, "algorithm": {"name": algorithm}}
    config = load(keys, sets, check_paths=False)
    history = [_round(draw, i, clients, rounds, personal, private, failing) for i in range(rounds if finished else 2)]
    content = config.model_dump(mode="json")
    if private:
        content["privacy"] |= {"clip": 1.0, "noise": 2.0, **PRIVACY}
        del content["privacy"]["simulation"]
    before = {"cold_start" if personal else "global": dict.fromkeys(METRICS, 0.1) | {"examples": 20}}
    counts = {client: {"a": 3 + i, "b": 5} for i, client in enumerate(clients)}
    summary: dict[str, Any] = {"primary": "accuracy", "before": before, "samples": []}
    fields: dict[str, Any] = {
        "label": None,
        "config": content,
        "travels": trained(config),
        "higher_is_better": True,
        "manifest": {"device": "cpu", "versions": {"torch": "2"}, "started": "2026-01-02T03:04:05"},
        "partition": {
            "clients": {c: {"train": 8 + i, "validation": 0, "labels": counts[c]} for i, c in enumerate(clients)}
        },
        "summary": summary if finished else None,
        "before": before,
        "measures_before": {},
        "rounds": history,
        "sites": {},
    }
    return Recorded(name, **{**fields, **changes})


def _round(
    draw: random.Random, index: int, clients: Sequence[str], rounds: int, personal: bool, private: bool, failing: bool
) -> dict[str, Any]:
    done = (index + 1) / rounds

    def value(metric: str) -> float:
        return draw.gauss(math.exp(-done) if metric == "loss" else 0.2 + 0.7 * done, 0.02)

    own = {client: {m: value(m) for m in METRICS} | {"examples": 4} for client in clients}
    spreads: dict[str, Any] = {m: {"mean": value(m), "weighted_mean": value(m), "clients": 3} for m in METRICS}
    spreads["accuracy"]["worst_tenth"] = min(scores["accuracy"] for scores in own.values())
    if index == rounds - 1:
        spreads["per_client"] = own
    scores: dict[str, Any] = {"cold_start" if personal else "global": {m: value(m) for m in METRICS} | {"examples": 20}}
    diagnostics = {
        key: abs(value(key)) for key in ("interference", "drift_A", "drift_B", "stable_rank", "update_stable_rank")
    }
    failed = [{"client": clients[0], "reason": "nonfinite_loss", "detail": "loss is nan"}] if failing else []
    spent = {"epsilon": 0.5 * (index + 1), "epsilon_valid": True}
    return {
        "round": index,
        "sampled": len(clients),
        "clients": len(clients) - len(failed),
        "failed": failed,
        "rejected": {"shape": 1} if failing else {},
        "skipped": None,
        "loss": None if private else value("loss"),
        "bytes_up": 1_000_000,
        "bytes_down": 900_000 if index else 0,
        "bytes_first_contact": 0,
        "train_seconds": 1.5,
        "seconds": 2.5,
        "measures": {},
        "titles": {"f1": "macro f1"},
        "scores": scores if private else {**scores, "personal" if personal else "clients": spreads},
        **({**spent, "guarantee": sentence(PRIVACY | spent)} if private else {"diagnostics": diagnostics}),
    }


def grid(methods: int, seeds: int, rounds: int) -> list[Recorded]:
    """Runs of so many methods by so many seeds, twenty clients each."""
    clients = [f"client-{i:02}" for i in range(20)]
    names = (
        "fedit",
        "rolora",
        "ffa-lora",
        "fedsa-lora",
        "flexlora",
        "flora",
        "fedex-lora",
        "fedsvd",
        "hetlora",
        "florg",
    )
    return [
        recorded(f"{name}-{seed}", algorithm=name, seed=seed, rounds=rounds, clients=clients, sets=[f"train.lr={lr}"])
        for i in range(methods)
        for name, lr in [(names[i % len(names)], 0.01 * (1 + i // len(names)))]
        for seed in range(seeds)
    ]


def hostile() -> list[Recorded]:
    """Runs all of whose names and texts are hostile."""
    sample: Mapping[str, str] = dict.fromkeys(("prompt", "expected", "before", "after"), f"one\n{HOSTILE}")
    run = recorded(HOSTILE, label=HOSTILE, clients=(HOSTILE, f"{HOSTILE}2", "c"), failing=True, finished=True)
    assert run.summary is not None
    record = dict(run.rounds[-1])
    record["failed"] = [{"client": HOSTILE, "reason": HOSTILE, "detail": HOSTILE}]
    record |= {"rejected": {HOSTILE: 2}, "skipped": HOSTILE, "titles": {"accuracy": HOSTILE, "f1": HOSTILE}}
    record["measures"] = {HOSTILE: 0.5}
    people = {HOSTILE: {"train": 3, "labels": {HOSTILE: 3}}, "c": {"train": 1, "labels": {"x": 1}}}
    other = recorded("other", label="other", sets=["train.lr=0.5"])
    texts = {
        "travels": HOSTILE,
        "manifest": {"device": HOSTILE, "started": HOSTILE, "versions": {HOSTILE: HOSTILE}},
        "partition": {"clients": people},
        "summary": {**run.summary, "samples": [sample]},
        "sites": {HOSTILE: {"state": HOSTILE, "reason": HOSTILE, "since": HOSTILE}},
        "rounds": [*run.rounds[:-1], record],
        "config": {**run.config, "data": {**run.config["data"], "source": HOSTILE, HOSTILE: HOSTILE}},
    }
    return [Recorded(**{**vars(run), **texts}), other]
