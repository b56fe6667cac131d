"""The server's half of secure aggregation: a round's new state from the sum of its uploads' integers.

In a simulation, the integers of each change are added without masks, which cancel in the sum. Where sites add noise,
each client adds the noise that a site of its own would.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Round, Upload
from rondo.config.schema import ClientsConfig, RunConfig
from rondo.privacy.masking.changes import Changes
from rondo.privacy.masking.fixed_point import FixedPoint
from rondo.privacy.masking.noise_share import NoiseShare, stream_of
from rondo.privacy.masking.shares import threshold_of
from rondo.privacy.sums.form import changes_of, fixed_point, noise_share, weighs_by_examples
from rondo.privacy.sums.sampling import sample


class Total(NamedTuple):
    """The sum of a round's integers, not published yet."""

    integers: Tensor
    """(n,) in int64."""
    weights: Sequence[float]
    """The weights of the uploads in it."""
    largest: float
    """The weight that counts as one."""
    threshold: int = 0
    """The threshold that the noise of its sites is for; 0 without noise."""
    sites: int = 0
    """The sites that have added noise."""


@dataclass(frozen=True)
class MaskedSum:
    """The sum of a run's uploads (:class:`rondo.privacy.sums.sum.Sum`). Their order does not matter.

    ``points``: the form of the integers.
    ``clients``: all clients of the run, whose numbers of examples are public.
    ``config``: uploads weigh by its ``clients.weighting``.
    ``noise``: of each site; None where sites add none.
    ``debug_seed``: of the noise.
    ``spend``: called with an attempt and the digest of a sum with noise, before anything is made of it.
    """

    points: FixedPoint
    clients: Sequence[Client]
    config: ClientsConfig
    noise: NoiseShare | None
    debug_seed: int | None
    spend: Callable[[int, str], None]

    @property
    def least(self) -> int:
        """Uploads below which a round is skipped, and no sum is opened."""
        return self.config.min_clients

    @property
    def faults(self) -> tuple[type[Exception], ...]:
        """A weight that is not public, and a sum without an honest site's noise."""
        return (ValueError,)

    def sample(self, clients: Sequence[Client], round: Round) -> list[Client]:
        """The clients of a round, sorted by id, as without masks."""
        return sample(self.config, clients, round)

    def total(self, algorithm: Algorithm[Any], state: Any, uploads: Iterable[Upload], round: Round) -> Total:
        """The sum of the integers. Raises ValueError for an upload whose weight is not public, and where no honest
        site's noise would be in it."""
        changes, largest = self.changes(algorithm, state, round), self.largest(algorithm)
        by_examples = weighs_by_examples(self.config, algorithm)
        total = torch.zeros(len(changes.nothing), dtype=torch.int64)
        weights: list[float] = []
        ids: list[str] = []
        for upload in uploads:
            weight = float(upload.client.num_examples) if by_examples else 1.0
            if upload.weight != weight:
                message = f"client {upload.client.id} weighs its upload by itself, which the server would not see"
                raise ValueError(message)
            change = changes.of(algorithm.expand(state, upload))
            if self.noise is None:
                total += self.points.encode(change, weight / largest)
            else:
                total += self.noise.encode(change)
            weights.append(weight)
            ids.append(upload.client.id)
        if self.noise is None or not ids:
            return Total(total, weights, largest)
        threshold = threshold_of(len(ids))
        for client in ids:
            stream = stream_of(self.debug_seed, round.attempt, client)
            total += torch.from_numpy(self.noise.drawn(threshold, len(total), stream))
        return Total(total, weights, largest, threshold, len(ids))

    def opened(self, algorithm: Algorithm[Any], state: Any, total: Total, round: Round) -> Any:
        """The next state, from the sum of at least one upload. Raises
        :class:`~rondo.privacy.masking.fixed_point.NotDecodable`."""
        integers, weights, largest, threshold, sites = total
        reach = 0.0
        if self.noise is not None:
            self.spend(round.attempt, hashlib.sha256(integers.numpy().astype("<i8").tobytes()).hexdigest())
            reach = self.noise.reach(threshold, sites, len(integers))
        # fsum rounds once, so the sums of weights depend on no order either.
        shares = math.fsum(w / largest for w in weights)
        values = self.points.decode(integers, shares, len(weights), reach) * largest
        mean = self.changes(algorithm, state, round).mean(values, math.fsum(weights), len(weights))
        return algorithm.finish(state, mean, round)

    def changes(self, algorithm: Algorithm[Any], state: Any, round: Round) -> Changes:
        """The changes of the uploads of ``round``, in the server's coordinates."""
        one = self.clients[0]
        return changes_of(algorithm, algorithm.broadcast(state, one, round), one, round)

    def largest(self, algorithm: Algorithm[Any]) -> float:
        """The largest weight: one for all uploads of a round, so a lost client does not change the integers of the
        others. A client that has not been met yet has no examples, and raises it from the round on in which it is
        known."""
        by_examples = weighs_by_examples(self.config, algorithm)
        return float(max(c.num_examples for c in self.clients)) if by_examples else 1.0


def masked_sum(config: RunConfig, clients: Sequence[Client], spend: Callable[[int, str], None]) -> MaskedSum | None:
    """The sum of a run whose uploads are masked; None for another run. ``spend``: see :class:`MaskedSum`.

    Raises :class:`ConfigError` as :func:`rondo.privacy.sums.form.fixed_point` does."""
    points, noise = fixed_point(config, len(clients)), noise_share(config, len(clients))
    if points is None:
        return None
    return MaskedSum(points, clients, config.clients, noise, config.privacy.debug_seed, spend)
