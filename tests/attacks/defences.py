"""What an adversary sees of uploads that are protected."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from masked_rounds import play, terms_for
from rondo.algorithm import Algorithm, Round, Upload
from rondo.config.schema import PrivacyConfig, RunConfig
from rondo.params import Params
from rondo.privacy.accounts.account import Account
from rondo.privacy.masking.integers import FixedPoint
from rondo.privacy.mechanism.clip import clipped
from rondo.privacy.sums.private_sum import PrivateSum


def median(changes: Sequence[Tensor]) -> float:
    """A clip that half of ``changes`` keep."""
    return float(torch.tensor([float(change.norm()) for change in changes]).median())


class Masked:
    """What a server gets of one upload among those of three sites. ``clip``: the largest norm of a change."""

    def __init__(self, clip: float) -> None:
        self.points, self.clip, self.luck = FixedPoint.of(32, clip, 3), clip, random.Random(0)

    def __call__(self, change: Tensor) -> Tensor:
        """The masked numbers of ``change``, of any shape, in its shape."""
        vector = self.points.encode(clipped(change.flatten(), self.clip), 1.0).numpy()
        vectors = {"a": vector, "b": numpy.zeros_like(vector), "c": numpy.zeros_like(vector)}
        sent = next(s for s in play(vectors, terms_for(3), self.luck, 0.0).sent if s.site == "a")
        return (torch.from_numpy(sent.vector.astype(numpy.int64)) - 2**31).double().reshape(change.shape)


@dataclass
class Released:
    """The models after a round with client-level privacy of noise z, whole uploads clipped at their median norm.

    ``state``: the server's before it.
    ``uploads``: of all clients, of which some are in a round.
    """

    config: RunConfig
    algorithm: Algorithm[Any]
    state: Any
    uploads: Sequence[Upload]
    noise: float
    round: Round

    def __post_init__(self) -> None:
        before = self.state.params
        norms = [sum(float((t - before[n]).double().square().sum()) for n, t in u.params.items()) for u in self.uploads]
        privacy = {"adversary": "reader", "unit": "client", "delta": 1e-5, "noise": self.noise}
        privacy |= {"clip": float(torch.tensor(norms).sqrt().median())}
        config = self.config.model_copy(update={"privacy": PrivacyConfig.model_validate(privacy)})
        self.private, self.rounds = PrivateSum(config, len(self.uploads), bytes(32), Account(lambda lines: None)), 0

    def __call__(self, drawn: Sequence[int]) -> Params:
        """The model after one in which the clients ``drawn`` took part; each call is another round."""
        self.rounds += 1
        round = Round(self.round.index, self.round.total, self.round.seed, self.round.population, self.rounds)
        total = self.private.total(self.algorithm, self.state, [self.uploads[i] for i in drawn], round)
        new: Params = self.private.opened(self.algorithm, self.state, total, round).params
        return new
