"""The sum of a round's uploads: the clients that take part, how a server adds them up, and the sum of a run without
protection."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from rondo.algorithm import Algorithm, Client, Round, Upload
from rondo.config.schema import ClientsConfig


class Sum(Protocol):
    """The sum of a round's uploads, and who takes part in it."""

    @property
    def least(self) -> int:
        """Uploads below which a round is skipped."""

    @property
    def faults(self) -> tuple[type[Exception], ...]:
        """Errors of :meth:`total` that cost the round and not the run: uploads that cannot be added up."""

    def sample(self, clients: Sequence[Client], round: Round) -> list[Client]:
        """The clients of a round, sorted by id."""

    def total(self, algorithm: Algorithm[Any], state: Any, uploads: Iterable[Upload], round: Round) -> Any:
        """The sum of what ``uploads`` add. It is not published."""

    def opened(self, algorithm: Algorithm[Any], state: Any, total: Any, round: Round) -> Any:
        """The next state, from the sum as it is published."""


@dataclass(frozen=True)
class SingleUploads:
    """No protection: the algorithm aggregates single uploads by itself. See :class:`Sum`."""

    config: ClientsConfig

    @property
    def least(self) -> int:
        return 0 if self.config.mode == "buffered" else self.config.min_clients

    @property
    def faults(self) -> tuple[type[Exception], ...]:
        """All errors: finite and well-formed numbers can make a system of equations singular."""
        return (Exception,)

    def sample(self, clients: Sequence[Client], round: Round) -> list[Client]:
        return sample(self.config, clients, round)

    def total(self, algorithm: Algorithm[Any], state: Any, uploads: Iterable[Upload], round: Round) -> Any:
        """The next state; ``state`` without uploads, since an algorithm needs one at least, except where earlier ones
        are on their way."""
        if self.config.mode == "buffered":
            return algorithm.aggregate(state, uploads, round)
        arriving = iter(uploads)
        first = next(arriving, None)
        if first is None:
            return state
        given = itertools.chain((first,), arriving)
        del first  # it is held by the algorithm alone
        return algorithm.aggregate(state, given, round)

    def opened(self, algorithm: Algorithm[Any], state: Any, total: Any, round: Round) -> Any:
        return total


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
