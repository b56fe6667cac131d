"""Scores of one model on one set of examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from rondo.lowrank import LowRank
from rondo.models.network import Network
from rondo.params import Params, add_client_axis
from rondo.tasks.task import Example, Task


@torch.no_grad()
def scores(
    network: Network,
    task: Task,
    seen: Params,
    base: Mapping[str, tuple[LowRank, ...]],
    examples: Sequence[Example],
    *,
    batch_size: int,
) -> dict[str, float | None]:
    """The task's metrics of the model ``seen`` (no client axis), on batches of similar length."""
    tally = task.tally()
    batched = add_client_axis(seen)
    ordered = sorted(examples, key=lambda e: e.length)
    for start in range(0, len(ordered), batch_size):
        inputs, targets = task.collate(ordered[start : start + batch_size])
        inputs, targets = ({n: t.to(network.device) for n, t in part.items()} for part in (inputs, targets))
        logits = network(batched, base, inputs).logits
        tally.add(logits, targets)
    return tally.scores()


def spread(per_client: Mapping[str, Mapping[str, Any]], metric: str, *, higher_is_better: bool) -> dict[str, Any]:
    """Mean over clients of ``metric``, and the mean over the worst tenth of them (at least one)."""
    values = [s[metric] for s in per_client.values() if s.get(metric) is not None]
    if not values:
        return {"mean": None, "worst_tenth": None, "clients": len(per_client)}
    worst = sorted(values, reverse=not higher_is_better)[: max(1, math.ceil(len(values) / 10))]
    return {"mean": sum(values) / len(values), "worst_tenth": sum(worst) / len(worst), "clients": len(values)}
