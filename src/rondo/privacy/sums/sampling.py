"""Sampling: the clients that take part in a round."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from rondo.algorithm import Client, Round
from rondo.config.schema import ClientsConfig


def sample(config: ClientsConfig, population: Sequence[Client], round: Round) -> list[Client]:
    """The clients of a round, sorted by id, drawn from the round's own stream.

    - "uniform": ``per_round`` clients without replacement.
    - "poisson": each client independently with probability per_round / N, so the number varies and may be zero.
    - "weighted": without replacement; a client with more examples is more likely.
    - "full", or ``per_round`` unset: all clients.

    ``over_select`` raises ``per_round`` by that fraction, rounded up.
    """
    count = len(population)
    size = _size(config, count)
    generator = round.attempt_generator("clients")
    if config.sampling == "full":
        chosen = list(range(count))
    elif config.sampling == "poisson":
        draw = torch.rand(count, generator=generator, dtype=torch.float64)
        chosen = (draw < size / count).nonzero().flatten().tolist()
    elif config.sampling == "weighted":
        weights = torch.tensor([c.num_examples for c in population], dtype=torch.float64)
        chosen = torch.multinomial(weights, size, replacement=False, generator=generator).tolist()
    else:
        chosen = torch.randperm(count, generator=generator)[:size].tolist()
    return sorted((population[i] for i in chosen), key=lambda c: c.id)


def most(config: ClientsConfig, population: int) -> int:
    """The largest number of clients that a round can have, of ``population`` clients."""
    return population if config.sampling in ("full", "poisson") else _size(config, population)


def _size(config: ClientsConfig, count: int) -> int:
    return min(math.ceil((config.per_round or count) * (1 + config.over_select)), count)
