"""Epsilon that clients with example-level privacy have spent, from the steps that their answers count, and the clients
whose next local training stays within the budget."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rondo.algorithm import Algorithm, Client, Round
from rondo.config.schema import RunConfig
from rondo.engine.expected_upload import private_steps, trial_fits
from rondo.privacy import accountant
from rondo.privacy.draws import Draws

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
    spent: dict[str, float] = {}
    for client in clients:
        spent[client.id] = _after(config, client, steps.get(client.id, 0))
    return {
        "epsilon": _told(max(spent.values(), default=0.0)),
        "client_epsilon": {c: _told(value) for c, value in spent.items() if c in asked},
        "epsilon_valid": privacy.debug_seed is None,
    }


def within_budget(
    config: RunConfig,
    algorithm: Algorithm[Any],
    state: Any,
    clients: Sequence[Client],
    steps: Mapping[str, int],
    round: Round,
) -> Sequence[Client]:
    """The clients whose local training in ``round`` keeps their epsilon within ``privacy.budget``: all where there is
    no budget of rows.

    ``steps``: see :func:`epsilons`.

    The steps of a training are those that the method asks for, found by running it with a trainer that does not train.
    """
    budget = config.privacy.budget
    if config.privacy.unit != "example" or budget is None or not clients:
        return clients
    fits = trial_fits(algorithm, algorithm.broadcast(state, clients[0], round), clients[0], round)
    left = []
    for client in clients:
        more = private_steps(fits, config.train, client.num_examples)
        if _after(config, client, steps.get(client.id, 0) + more) <= budget:
            left.append(client)
    return left


def _after(config: RunConfig, client: Client, steps: int) -> float:
    """Epsilon of ``client`` after ``steps`` private steps."""
    privacy = config.privacy
    assert privacy.noise is not None
    assert privacy.delta is not None
    q = Draws(config.train.batch_size, client.num_examples).probability
    return _epsilon(privacy.noise, q, steps, privacy.delta) if steps else 0.0


def _told(value: float) -> float | None:
    return value if math.isfinite(value) else None
