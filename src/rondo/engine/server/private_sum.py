"""The sum of a round's uploads with client-level differential privacy.

Each upload adds its change from the upload of a client that learned nothing, clipped to one norm, with weight 1. Noise
goes on the sum, which is divided by the expected number of clients, not by the number that came. Nothing depends on how
many came: an empty round adds noise, spends, and steps. Clients are drawn with a secret key, since every site knows the
run's seed, and amplification by sampling needs a sample that nobody can compute.
Sources: McMahan et al. 2018 (DP-FedAvg); `docs/privacy.md`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Round, Upload
from rondo.config.schema import RunConfig
from rondo.engine.expected_upload import trial_upload
from rondo.privacy.accountant import epsilon_of_sums
from rondo.privacy.changes import Changes
from rondo.privacy.clip import clipped
from rondo.privacy.noise import noised

Releases = dict[int, list[str]]
"""SHA-256 of every sum that was given noise, by attempt."""


@dataclass
class PrivateSum:
    """The sum of a run's uploads. See :class:`rondo.engine.server.rounds.Sum`."""

    config: RunConfig
    population: int
    """Number of clients of the run."""
    key: bytes
    """32 secret bytes: who has them can compute the sample and the noise."""
    releases: Releases = field(default_factory=dict)
    keep: Callable[[Mapping[int, Sequence[str]]], None] = lambda releases: None
    """Writes the releases down, before the newest is used: what may have been seen is never forgotten."""
    least: int = 0
    """Uploads below which a round is skipped: none, since a skipped round tells how many came."""
    _known: dict[tuple[tuple[int, int], ...], float] = field(default_factory=dict)

    @property
    def expected(self) -> int:
        """The expected number of clients per round."""
        return self.config.clients.per_round or self.population

    @property
    def _share(self) -> float:
        return self.expected / self.population if self.config.clients.sampling == "poisson" else 1.0

    def sample(self, clients: Sequence[Client], round: Round) -> list[Client]:
        """The clients of ``round``, sorted by id: each by itself with probability per_round / N, or all."""
        if self.config.clients.sampling == "full":
            return sorted(clients, key=lambda c: c.id)
        stream = hashlib.shake_256(self.key + b"clients" + round.attempt.to_bytes(8, "little"))
        words = np.frombuffer(stream.digest(8 * len(clients)), dtype="<u8") >> np.uint64(11)
        drawn = words.astype(np.float64) * 2.0**-53 < self._share
        return sorted((c for c, taken in zip(clients, drawn, strict=True) if taken), key=lambda c: c.id)

    def total(self, algorithm: Algorithm[Any], state: Any, uploads: Iterable[Upload], round: Round) -> Tensor:
        """The sum of the clipped changes, (n,) in float64; zeros without uploads."""
        changes, bound = self._changes(algorithm, state, round), self._clip
        total = torch.zeros_like(changes.nothing)
        for upload in uploads:
            total += clipped(changes.of(algorithm.expand(state, upload)), bound)
        return total

    def opened(self, algorithm: Algorithm[Any], state: Any, total: Tensor, round: Round) -> Any:
        """The next state, from ``total`` with noise. The same sum of the same attempt gets the same noise and spends
        once; another sum of the attempt gets other noise and spends again."""
        digest = hashlib.sha256(total.numpy().astype("<f8", copy=False).tobytes()).hexdigest()
        sums = self.releases.setdefault(round.attempt, [])
        if digest not in sums:
            sums.append(digest)
            self.keep(self.releases)
        assert self.config.privacy.noise is not None
        noisy = noised(total, self.config.privacy.noise * self._clip, self.key, round.attempt)
        mean = self._changes(algorithm, state, round).mean(noisy, float(self.expected), self.expected)
        return algorithm.finish(state, mean, round)

    def epsilon(self, more: int = 0) -> float:
        """Epsilon of everything published so far, and of ``more`` rounds."""
        privacy = self.config.privacy
        assert privacy.noise is not None
        assert privacy.delta is not None
        counts = Counter(map(len, self.releases.values()))
        counts[1] += more
        known = tuple(sorted(counts.items()))
        if known not in self._known:
            self._known[known] = epsilon_of_sums(privacy.noise, self._share, counts, privacy.delta)
        return self._known[known]

    @property
    def exhausted(self) -> bool:
        """Whether another round would exceed ``privacy.budget``."""
        budget = self.config.privacy.budget
        return budget is not None and self.epsilon(1) > budget

    @property
    def _clip(self) -> float:
        assert self.config.privacy.clip is not None
        return self.config.privacy.clip

    def _changes(self, algorithm: Algorithm[Any], state: Any, round: Round) -> Changes:
        nobody = Client("", 1)
        trial = trial_upload(algorithm, algorithm.broadcast(state, nobody, round), nobody, round)
        return Changes.around(algorithm.expand(state, trial).params)
