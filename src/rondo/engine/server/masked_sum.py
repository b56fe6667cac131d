"""The server's half of secure aggregation: a round's new state from the sum of its uploads' integers.

In a simulation, the integers of each change are added without masks, which cancel in the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Round, Upload
from rondo.config.schema import ClientsConfig, RunConfig
from rondo.engine.expected_upload import trial_upload
from rondo.engine.server.sampling import most, sample
from rondo.errors import ConfigError
from rondo.privacy.changes import Changes
from rondo.privacy.fixed_point import LEAST_FRACTION, FixedPoint


@dataclass(frozen=True)
class MaskedSum:
    """The sum of a run's uploads (:class:`rondo.engine.server.rounds.Sum`). Their order does not matter.

    ``points``: the form of the integers.
    ``clients``: all clients of the run, whose numbers of examples are public.
    ``config``: uploads weigh by its ``clients.weighting``.
    """

    points: FixedPoint
    clients: Sequence[Client]
    config: ClientsConfig

    @property
    def least(self) -> int:
        """Uploads below which a round is skipped, and no sum is opened."""
        return self.config.min_clients

    def sample(self, clients: Sequence[Client], round: Round) -> list[Client]:
        """The clients of a round, sorted by id, as without masks."""
        return sample(self.config, clients, round)

    def total(
        self, algorithm: Algorithm[Any], state: Any, uploads: Iterable[Upload], round: Round
    ) -> tuple[Tensor, list[float]]:
        """The sum of the integers, and the weights. Raises ValueError for an upload whose weight is not public."""
        changes, largest = self._changes(algorithm, state, round), self._largest(algorithm)
        by_examples = self._by_examples(algorithm)
        total = torch.zeros(len(changes.nothing), dtype=torch.int64)
        weights: list[float] = []
        for upload in uploads:
            weight = float(upload.client.num_examples) if by_examples else 1.0
            if upload.weight != weight:
                message = f"client {upload.client.id} weighs its upload by itself, which the server would not see"
                raise ValueError(message)
            total += self.points.encode(changes.of(algorithm.expand(state, upload)), weight / largest)
            weights.append(weight)
        return total, weights

    def opened(self, algorithm: Algorithm[Any], state: Any, total: tuple[Tensor, Sequence[float]], round: Round) -> Any:
        """The next state, from the sum of at least one upload. Raises
        :class:`~rondo.privacy.fixed_point.NotDecodable`."""
        integers, weights = total
        largest, count = self._largest(algorithm), len(weights)
        # fsum rounds once, so the sums of weights depend on no order either.
        shares = math.fsum(w / largest for w in weights)
        values = self.points.decode(integers, shares, count) * largest
        mean = self._changes(algorithm, state, round).mean(values, math.fsum(weights), count)
        return algorithm.finish(state, mean, round)

    def _changes(self, algorithm: Algorithm[Any], state: Any, round: Round) -> Changes:
        one = self.clients[0]
        nothing = trial_upload(algorithm, algorithm.broadcast(state, one, round), one, round)
        return Changes.around(algorithm.expand(state, nothing).params)

    def _by_examples(self, algorithm: Algorithm[Any]) -> bool:
        return self.config.weighting == "examples" and algorithm.traits.weighting == "run"

    def _largest(self, algorithm: Algorithm[Any]) -> float:
        """The largest weight: one for the whole run, so a lost client does not change the integers of the others."""
        return float(max(c.num_examples for c in self.clients)) if self._by_examples(algorithm) else 1.0


def masked_sum(config: RunConfig, clients: Sequence[Client]) -> MaskedSum | None:
    """The sum of a run whose uploads are masked; None for another run. Raises :class:`ConfigError` where the ring is
    too small for the bound and the number of clients."""
    points = fixed_point(config, len(clients))
    return None if points is None else MaskedSum(points, clients, config.clients)


def fixed_point(config: RunConfig, population: int) -> FixedPoint | None:
    """The integers of a run with ``population`` clients; None where no upload is masked. Raises
    :class:`ConfigError` as :func:`masked_sum` does."""
    privacy = config.privacy
    if not privacy.secure_aggregation:
        return None
    assert privacy.clip is not None
    count = most(config.clients, population)
    try:
        return FixedPoint.of(privacy.ring, privacy.clip, count)
    except ValueError:
        message = f"{count} changes of norm {privacy.clip:g} leave fewer than {LEAST_FRACTION} fractional bits"
        otherwise = "set privacy.ring = 64, or lower it" if privacy.ring == 32 else "lower it"
        raise ConfigError.at("privacy.clip", f"{message} in {privacy.ring} bits: {otherwise}") from None
