"""Secure aggregation: facts about a masked sum that its server and its sites compute alike, and the server's half: a
round's new state from the sum of its uploads' integers.

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

from rondo.algorithm import Algorithm, Client, Round, Shared, Upload
from rondo.algorithms.trial import trial_upload
from rondo.config.schema import ClientsConfig, RunConfig
from rondo.errors import ConfigError
from rondo.privacy.masking.changes import Changes
from rondo.privacy.masking.integers import LEAST_FRACTION, FixedPoint, NoiseShare, stream_of
from rondo.privacy.masking.shares import threshold_of
from rondo.privacy.sums.sum import most, sample


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
        :class:`~rondo.privacy.masking.integers.NotDecodable`."""
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

    Raises :class:`ConfigError` as :func:`fixed_point` does."""
    points, noise = fixed_point(config, len(clients)), noise_share(config, len(clients))
    if points is None:
        return None
    return MaskedSum(points, clients, config.clients, noise, config.privacy.debug_seed, spend)


def fixed_point(config: RunConfig, population: int) -> FixedPoint | None:
    """The integers of a run with ``population`` clients; None where no upload is masked. Raises :class:`ConfigError`
    where the ring is too small for the bound and the number of clients."""
    privacy, guarantee = config.privacy, config.guarantee
    if not guarantee.masks_uploads:
        return None
    largest, count, noise = guarantee.largest_change, most(config.clients, population), ""
    try:
        if guarantee.noise_from != "sites":
            return FixedPoint.of(privacy.ring, largest, count)
        assert privacy.noise is not None
        noise = f" and noise of {privacy.noise:g} times that"
        return NoiseShare.of(privacy.ring, largest, count, privacy.noise, privacy.colluding).points
    except ValueError:
        message = f"{count} changes of norm {largest:g}{noise} leave fewer than {LEAST_FRACTION} fractional bits"
        otherwise = "set privacy.ring = 64, or lower it" if privacy.ring == 32 else "lower it"
        key = "privacy.upload_clip" if guarantee.of_rows else "privacy.clip"
        raise ConfigError.at(key, f"{message} in {privacy.ring} bits: {otherwise}") from None


def noise_share(config: RunConfig, population: int) -> NoiseShare | None:
    """The noise of a site of a run with ``population`` clients; None where sites add none. Raises :class:`ConfigError`
    as :func:`fixed_point` does, and where too few sites can be in a sum."""
    points, privacy = fixed_point(config, population), config.privacy
    if points is None or config.guarantee.noise_from != "sites":
        return None
    assert privacy.noise is not None
    check_colluding(config, most(config.clients, population))
    return NoiseShare(points, privacy.noise, privacy.colluding)


def check_colluding(config: RunConfig, sites: int) -> None:
    """Raise :class:`ConfigError` where the noise of a sum of ``sites`` sites would be that of colluding ones."""
    colluding, enough = colluding_of(config), threshold_of(sites)
    if enough <= colluding:
        message = f"{enough} of {sites} sites open a sum, and if {colluding} collude, nobody's noise is left"
        raise ConfigError.at("privacy.colluding", f"{message}: lower it, or have more sites")


def colluding_of(config: RunConfig) -> int:
    """The number of sites whose noise may be known; 0 where sites add none."""
    return config.privacy.colluding if config.guarantee.noise_from == "sites" else 0


def weighs_by_examples(config: ClientsConfig, algorithm: Algorithm[Any]) -> bool:
    """Whether an upload weighs as much as its client has examples. Otherwise all weigh 1."""
    return config.weighting == "examples" and algorithm.traits.weighting == "run"


def changes_of(algorithm: Algorithm[Any], shared: Shared, client: Client, round: Round) -> Changes:
    """The changes of the uploads of clients that were sent ``shared``. Every client gives the same, in an order of the
    tensors that follows from their names alone."""
    nothing = trial_upload(algorithm, shared, client, round).params
    return Changes.around({name: nothing[name] for name in sorted(nothing)})
