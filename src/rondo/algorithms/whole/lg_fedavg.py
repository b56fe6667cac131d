from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rondo.algorithm import Algorithm, Client, ServerState, Shared, Trainer, Uploads
from rondo.params import Params, head, pick
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class LGFedAvg(Algorithm[ServerState]):
    """Body and head are trained together; the head is averaged, the body stays with its client for the whole run.

    Update, with p_k the participants' weights, summing to 1::

        client k:  (l_k, g_k) <- local training of both from (l_k, g)
        server:    g <- sum_k p_k g_k

    Symbols: l_k, the paper's local model, is everything below the head, statistics and factors included; g, its global
    model, is the head. ``model.head_layers`` divides the two: the paper shares more than the last layer.
    Uploads: g; no factors, 0 numbers per module. Down: the same (the common first body once, at a client's first
    contact).
    Exact: not applicable, because there is no global model.
    Linear: yes.
    Personal: yes. A new client (the cold-start model) has the initial body and g.
    Head in the source: trained and shared; here shared by default.
    Deviations: clients start from one random body, as FedRep's authors run the method. The official code starts from
    rounds of FedAvg, and reports each client's best model on the test set.
    Reference: Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global Representations,
    2020.
    """

    traits = Traits(exact=False, needs_factors=False, personal=True, keeps=~head)

    def local_init(self, shared: Shared, client: Client) -> Params:
        return pick(shared.params, ~head)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fit = trainer.fit({**shared.params, **local})
        return trainer.upload(pick(fit.params, head)), pick(fit.params, ~head)
