"""The sum of a round's uploads with client-level differential privacy.

Each upload adds its change from the upload of a client that learned nothing, clipped to one norm, with weight 1. Noise
goes on the sum, which is divided by the expected number of clients, not by the number that came. Nothing depends on how
many came: an empty round adds noise, spends, and steps. Clients are drawn with a secret key, since every site knows the
run's seed, and amplification by sampling needs a sample that nobody can compute.
The clip is a number, or follows the median of the changes (:mod:`rondo.privacy.mechanism.clip`).
Sources: McMahan et al. 2018 (DP-FedAvg); `docs/privacy.md`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Round, Upload
from rondo.algorithms.trial import trial_upload
from rondo.config.schema import RunConfig
from rondo.privacy.accounts.account import Account, Entry, SumAccount
from rondo.privacy.masking.changes import Changes
from rondo.privacy.mechanism.clip import START, AdaptiveClip, clipped
from rondo.privacy.mechanism.noise import digest_of, noised


@dataclass(frozen=True)
class PrivateSum:
    """The sum of a run's uploads. See :class:`rondo.privacy.sums.sum.Sum`."""

    config: RunConfig
    population: int
    """Number of clients of the run."""
    key: bytes
    """32 secret bytes: who has them can compute the sample and the noise."""
    account: Account
    """Has every sum before it is used: what may have been seen is never forgotten."""
    least: int = 0
    """Uploads below which a round is skipped: none, since a skipped round tells how many came."""

    @property
    def faults(self) -> tuple[type[Exception], ...]:
        """An upload of other tensors, which admission lets nobody send."""
        return (ValueError,)

    @property
    def expected(self) -> int:
        """The expected number of clients per round."""
        return self.config.clients.per_round or self.population

    @property
    def _share(self) -> float:
        return self.expected / self.population if self.config.clients.sampling == "poisson" else 1.0

    def sample(self, clients: Sequence[Client], round: Round) -> list[Client]:
        """The clients of ``round``, sorted by id: each by itself with probability per_round / N, or all. The draw of a
        client depends on no other, so an attempt that is asked again draws it again, whoever joined or left."""
        share, prefix = self._share, self.key + b"clients" + round.attempt.to_bytes(8, "little")
        return sorted((c for c in clients if _uniform(prefix, c.id) < share), key=lambda c: c.id)

    def total(self, algorithm: Algorithm[Any], state: Any, uploads: Iterable[Upload], round: Round) -> Tensor:
        """The sum of the clipped changes, (n,) in float64; zeros without uploads. Where the clip is adaptive, a sum of
        bits follows: 1/2 for a change within the clip, else -1/2."""
        changes, bound = self._changes(algorithm, state, round), self.clip(round.attempt)
        total, bits = torch.zeros_like(changes.nothing), 0.0
        for upload in uploads:
            try:
                change = changes.of(algorithm.expand(state, upload))
                inside = clipped(change, bound)
            except ValueError:  # as from a client that failed: a round that stopped here would tell of it
                continue
            total += inside
            bits += 0.5 if inside is change else -0.5
        return total if self._adaptive is None else torch.cat([total, total.new_tensor([bits])])

    def opened(self, algorithm: Algorithm[Any], state: Any, total: Tensor, round: Round) -> Any:
        """The next state, from ``total`` with noise. The same sum of the same attempt gets the same noise and spends
        once; another sum of the attempt gets other noise and spends again."""
        attempt, adaptive, noise = round.attempt, self._adaptive, self.config.privacy.noise
        clip = self.clip(attempt)
        assert noise is not None
        deviation: float | Tensor = noise * clip
        if adaptive is not None:
            deviation = torch.full_like(total, adaptive.of_sum * clip)
            deviation[-1] = adaptive.of_bits
        noisy = noised(total, deviation, self.key, attempt)
        then = None if adaptive is None else adaptive.after(clip, float(noisy[-1]))
        self.spent.spend(attempt, digest_of(total, deviation).hex(), clip=clip, then=then)
        noisy = noisy if adaptive is None else noisy[:-1]
        mean = self._changes(algorithm, state, round).mean(noisy, float(self.expected), self.expected)
        return algorithm.finish(state, mean, round)

    def clip(self, attempt: int) -> float:
        """The clip of ``attempt``: where it is adaptive, it follows from the noisy bits of the attempt before."""
        fixed = self.config.privacy.clip
        if self._adaptive is None:
            assert isinstance(fixed, float)
            return fixed
        clips = self.account.clips
        return clips.get(max((known for known in clips if known <= attempt), default=-1), START)

    @property
    def _adaptive(self) -> AdaptiveClip | None:
        privacy = self.config.privacy
        return AdaptiveClip(privacy.noise or 0.0, self.expected) if privacy.clip == "adaptive" else None

    @property
    def spent(self) -> SumAccount:
        """The account, at the protection of the next sum."""
        now = replace(Entry.of(self.config), sampled=self._share)
        return SumAccount(self.account, now, self.config.privacy.budget)

    @property
    def exhausted(self) -> bool:
        """Whether another round would exceed ``privacy.budget``."""
        return self.spent.exhausted

    def record(self, attempt: int) -> dict[str, Any]:
        """Keys of the record of ``attempt``: those of the account, and ``clip`` where it is adaptive."""
        return self.spent.record(attempt) | ({} if self._adaptive is None else {"clip": self.clip(attempt)})

    def _changes(self, algorithm: Algorithm[Any], state: Any, round: Round) -> Changes:
        nobody = Client("", 1)
        trial = trial_upload(algorithm, algorithm.broadcast(state, nobody, round), nobody, round)
        return Changes.around(algorithm.expand(state, trial).params)


def _uniform(prefix: bytes, client: str) -> float:
    """A number in [0, 1), of 53 bits."""
    digest = hashlib.sha256(prefix + client.encode("utf-8", "surrogatepass")).digest()
    return (int.from_bytes(digest[:8], "little") >> 11) * 2.0**-53
