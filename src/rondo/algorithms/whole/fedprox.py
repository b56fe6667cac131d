from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from torch import Tensor

from rondo.algorithm import Algorithm, Loss, ServerState, Shared, Trainer, Uploads
from rondo.params import Params, buffer, pick, sq_norm, sub
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FedProx(Algorithm[ServerState]):
    """FedAvg whose clients are held near the model that they received.

    Update, with p_k the participants' weights, summing to 1::

        client k:  w_k <- local training from w on F_k(v) + mu/2 |v - w|^2
        server:    w <- sum_k p_k w_k

    Symbols: w are all trained tensors, factors included; ``mu`` is the paper's mu. Statistics have no part in the norm.
    With mu = 0 this is FedAvg.
    Uploads: w; A and B, r (in + out) numbers per module. Down: the same.
    Exact: yes, where whole tensors are trained alone. With factors no, as for FedIT.
    Linear: yes.
    Personal: no.
    Head in the source: trained and shared; here shared by default.
    Deviations: every client does the run's local work. In the paper slow clients do less, and their part of it counts.
    The paper tunes mu among 0.001, 0.01, 0.1 and 1; the default is the value that FedRep's authors use on CIFAR.
    Reference: Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020.
    """

    traits = Traits(exact=True, needs_factors=False)
    mu: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.mu < math.inf:
            raise ValueError(f"mu is the strength of the proximal term, finite and at least 0; got {self.mu}")

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        received = pick(shared.params, ~buffer)

        def objective(params: Params, loss: Loss) -> Tensor:
            return loss(params) + self.mu / 2 * sq_norm(sub(pick(params, ~buffer), received))

        return trainer.upload(trainer.fit(shared.params, objective=objective).params), local
