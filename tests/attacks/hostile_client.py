"""A client that plants a backdoor by replacing the model: it sends its own change times the number of clients in the
last round, and hides among the honest before.

Source: Bagdasaryan et al. 2020 ("How To Backdoor Federated Learning").
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch

from rondo.algorithm import Algorithm, Round, ServerState, Shared, Trainer, Uploads, Weight
from rondo.params import Params
from rondo.traits import Traits

NAME = "hostile"


@final
@dataclass(frozen=True)
class Replaced(Algorithm[ServerState]):
    """FedAvg with one client whose last change is sent ``boost`` times as long."""

    traits = Traits(exact=True, needs_factors=False)
    boost: float = 1.0

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerState:
        return ServerState(params)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fitted = trainer.fit(shared.params).params
        last = trainer.round.index + 1 == trainer.round.total
        times = torch.tensor([self.boost if last and client.id == NAME else 1.0 for client in trainer.clients])
        sent = {
            name: shared.params[name] + times.to(t).view(-1, *[1] * (t.dim() - 1)) * (t - shared.params[name])
            for name, t in fitted.items()
        }
        return trainer.upload(sent), local
