"""Epsilon that clients with example-level privacy have spent, from the steps that their answers count."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rondo.algorithm import Client
from rondo.config.schema import RunConfig
from rondo.privacy import accountant

_epsilon = functools.lru_cache(maxsize=4096)(accountant.epsilon)
"""Clients of equal size have equal steps, and later rounds ask again for those of clients that were away."""


def epsilons(
    config: RunConfig, clients: Sequence[Client], steps: Mapping[str, int], asked: Collection[str]
) -> dict[str, Any]:
    """Keys of a round's record: ``epsilon``, the largest of all clients so far; ``client_epsilon``, by id of the
    clients ``asked`` in this round; ``epsilon_valid``, False with a debug seed. None is no guarantee at all. Empty
    without ``privacy.unit = "example"``.

    ``clients``: all of them.
    ``steps``: private steps so far, by client id.
    """
    privacy = config.privacy
    if privacy.unit != "example":
        return {}
    assert privacy.noise is not None
    assert privacy.delta is not None
    spent: dict[str, float] = {}
    for client in clients:
        taken = steps.get(client.id, 0)
        q = min(1.0, config.train.batch_size / max(1, client.num_examples))
        spent[client.id] = _epsilon(privacy.noise, q, taken, privacy.delta) if taken else 0.0
    return {
        "epsilon": _told(max(spent.values(), default=0.0)),
        "client_epsilon": {c: _told(value) for c, value in spent.items() if c in asked},
        "epsilon_valid": privacy.debug_seed is None,
    }


def _told(value: float) -> float | None:
    return value if math.isfinite(value) else None
