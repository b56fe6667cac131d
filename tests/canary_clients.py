"""Clients whose uploads are canaries: random directions, far longer than the clip, sent or kept back by a coin each.

Source: Andrew et al. 2024 ("One-shot Empirical Privacy Estimation for Federated Learning").
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from rondo.algorithm import Algorithm, Client, Round, ServerState, Shared, Trainer, Uploads, Weight
from rondo.params import Params
from rondo.traits import Traits


def network(config: Any, task: Any) -> nn.Module:
    """A network of 11,603 numbers for pictures of 5 x 5 pixels."""
    return nn.Sequential(nn.Flatten(), nn.Linear(25, 400), nn.Tanh(), nn.Linear(400, len(task.labels)))


def coin(client: str, seed: int) -> int | None:
    """1 or 0 for a canary that is in or out; None for a client that trains, two of five."""
    byte = hashlib.sha256(f"{seed} {client}".encode()).digest()[0]
    return None if byte % 5 < 2 else byte // 5 % 2


def direction(client: str, seed: int, like: Params) -> dict[str, Tensor]:
    """The canary's direction, of norm 1 over all tensors."""
    number = int.from_bytes(hashlib.sha256(f"direction {seed} {client}".encode()).digest()[:7], "big")
    stream = torch.Generator().manual_seed(number)
    drawn = {name: torch.randn(like[name].shape, generator=stream) for name in sorted(like)}
    norm = torch.cat([t.flatten() for t in drawn.values()]).norm()
    return {name: t / norm for name, t in drawn.items()}


@final
@dataclass(frozen=True)
class Canaries(Algorithm[ServerState]):
    """FedAvg among whose clients are canaries."""

    traits = Traits(exact=True, needs_factors=False)
    seed: int = 0
    length: float = 1000.0

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerState:
        return ServerState(params)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fitted = trainer.fit(shared.params).params
        each = [self._upload(k, client, shared.params, fitted) for k, client in enumerate(trainer.clients)]
        return trainer.upload({name: torch.stack([one[name] for one in each]) for name in fitted}), local

    def _upload(self, place: int, client: Client, before: Params, fitted: Params) -> dict[str, Tensor]:
        tossed = coin(client.id, self.seed)
        if tossed is None or client.id == "":  # the server asks nobody for the upload of a client that learned nothing
            return {name: t[place] for name, t in fitted.items()}
        canary = direction(client.id, self.seed, {name: t[place] for name, t in before.items()})
        return {name: t[place] + tossed * self.length * canary[name] for name, t in before.items()}
