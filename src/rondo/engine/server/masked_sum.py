"""The server's half of secure aggregation: a round's new state from the sum of its uploads' integers.

In a simulation, the integers of each change are added without masks, which cancel in the sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rondo.algorithm import Algorithm, Client, Mean, Round, Upload
from rondo.config.schema import RunConfig
from rondo.engine.expected_upload import trial_upload
from rondo.engine.server.sampling import most
from rondo.errors import ConfigError
from rondo.privacy.changes import Changes
from rondo.privacy.fixed_point import LEAST_FRACTION, FixedPoint


@dataclass(frozen=True)
class MaskedSum:
    """Takes the place of :meth:`rondo.algorithm.Algorithm.aggregate`. The order of uploads does not matter.

    ``points``: the form of the integers.
    ``clients``: all clients of the run, whose numbers of examples are public.
    ``by_examples``: whether uploads weigh as much as their client has examples; otherwise all weigh 1.
    """

    points: FixedPoint
    clients: Sequence[Client]
    by_examples: bool

    def state(self, algorithm: Algorithm[Any], state: Any, uploads: Iterable[Upload], round: Round) -> Any:
        """The state after ``uploads``, of which there is at least one. Raises
        :class:`~rondo.privacy.fixed_point.NotDecodable`, and ValueError for an upload whose weight is not public."""
        one = self.clients[0]
        nothing = trial_upload(algorithm, algorithm.broadcast(state, one, round), one, round)
        changes = Changes.around(algorithm.expand(state, nothing).params)
        by_examples = self.by_examples and algorithm.traits.weighting == "run"
        # One scale for the whole run, so a lost client does not change the integers of the others.
        largest = float(max(c.num_examples for c in self.clients)) if by_examples else 1.0
        total = torch.zeros(len(changes.nothing), dtype=torch.int64)
        weights: list[float] = []
        for upload in uploads:
            weight = float(upload.client.num_examples) if by_examples else 1.0
            if upload.weight != weight:
                message = f"client {upload.client.id} weighs its upload by itself, which the server would not see"
                raise ValueError(message)
            total += self.points.encode(changes.of(algorithm.expand(state, upload)), weight / largest)
            weights.append(weight)
        return algorithm.finish(state, self._mean(changes, total, weights, largest), round)

    def _mean(self, changes: Changes, total: torch.Tensor, weights: Sequence[float], largest: float) -> Mean:
        # fsum rounds once, so the sums of weights depend on no order either.
        shares, count = math.fsum(w / largest for w in weights), len(weights)
        opened = self.points.decode(total, shares, count)
        return changes.mean(opened * largest, math.fsum(weights), count)


def masked_sum(config: RunConfig, clients: Sequence[Client]) -> MaskedSum | None:
    """The sum of a run whose uploads are masked; None for another run. Raises :class:`ConfigError` where the ring is
    too small for the bound and the number of clients."""
    points = fixed_point(config, len(clients))
    return None if points is None else MaskedSum(points, clients, config.clients.weighting == "examples")


def fixed_point(config: RunConfig, population: int) -> FixedPoint | None:
    """The integers of a run with ``population`` clients; None where no upload is masked. Raises
    :class:`ConfigError` as :func:`masked_sum` does."""
    privacy = config.privacy
    if not privacy.secure_aggregation:
        return None
    assert isinstance(privacy.clip, float)
    count = most(config.clients, population)
    try:
        return FixedPoint.of(privacy.ring, privacy.clip, count)
    except ValueError:
        message = f"{count} changes of norm {privacy.clip:g} leave fewer than {LEAST_FRACTION} fractional bits"
        otherwise = "set privacy.ring = 64, or lower it" if privacy.ring == 32 else "lower it"
        raise ConfigError.at("privacy.clip", f"{message} in {privacy.ring} bits: {otherwise}") from None
