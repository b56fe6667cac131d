from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rondo.algorithm import Algorithm, Client, ServerState, Shared, Trainer, Uploads
from rondo.params import Params, everything, pick
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class LocalTraining(Algorithm[ServerState]):
    """Every client trains its own model alone; nothing travels. The baseline that collaboration has to beat.

    Update::

        client k:  w_k <- local training of all tensors from w_k
        server:    nothing

    Symbols: w_k are all trained tensors of client k, head, statistics and factors included.
    Uploads: an empty message, 0 numbers per module, so that rounds, sampling and failures are those of every other
    method. Down: nothing.
    Exact: not applicable, because there is no global model.
    Linear: yes.
    Personal: yes. A new client (the cold-start model) has the initial model. With ``model.head = "shared"`` the head is
    sent and averaged, and the method is LG-FedAvg.
    Head in the source: trained and local; here local by default.
    Deviations: none. A client that is sampled in few rounds trains little, as under any other method. To train every
    client alone as long as it can, see ``evaluation.local_only``.
    Reference: Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021, whose
    tables call it "Local Only".
    """

    traits = Traits(exact=False, needs_factors=False, personal=True, keeps=everything, default_head="local")

    def local_init(self, shared: Shared, client: Client) -> Params:
        return dict(shared.params)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fit = trainer.fit({**shared.params, **local})
        return trainer.upload(pick(fit.params, lambda n: n not in local)), pick(fit.params, local.__contains__)
