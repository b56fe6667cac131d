from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rondo.algorithm import Algorithm, Client, ServerState, Shared, Trainer, Uploads
from rondo.params import Params, head, pick
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FedPer(Algorithm[ServerState]):
    """Body and head are trained together; the body is averaged, the head stays with its client for the whole run.

    Update, with p_k the participants' weights, summing to 1::

        client k:  (W_B,k, W_P,k) <- local training of both from (W_B, W_P,k)
        server:    W_B <- sum_k p_k W_B,k

    Symbols: W_B, the paper's base layers, are everything below the head, statistics and factors included; W_P,k, its
    personalisation layers, are the head.
    Uploads: W_B; A and B, r (in + out) numbers per module. Down: the same.
    Exact: not applicable, because there is no global model.
    Linear: yes.
    Personal: yes. A new client (the cold-start model) has W_B and the initial head. With ``model.head = "shared"``
    nothing is personal, and the method is FedAvg.
    Head in the source: trained and local; here local by default.
    Deviations: all heads start equal, at the run's first one; the paper draws one per client (algorithm 1). It weights
    clients by sample count; the run's ``weighting`` does so here.
    Reference: Arivazhagan et al., Federated Learning with Personalization Layers, 2019.
    """

    traits = Traits(exact=False, needs_factors=False, personal=True, keeps=head, default_head="local")

    def local_init(self, shared: Shared, client: Client) -> Params:
        return pick(shared.params, head)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fit = trainer.fit({**shared.params, **local})
        return trainer.upload(pick(fit.params, lambda n: n not in local)), pick(fit.params, local.__contains__)
