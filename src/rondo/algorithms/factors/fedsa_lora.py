from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rondo.algorithm import Algorithm, Client, ServerState, Shared, Trainer, Uploads
from rondo.params import Params, down, pick, up, whole
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FedSALoRA(Algorithm[ServerState]):
    """Both factors are trained; A is sent and averaged, B stays with its client for the whole run.

    Update, with p_k the participants' weights, summing to 1::

        client k:  (A_k, B_k) <- local training of A and B from (A, B_k)
        server:    A <- sum_k p_k A_k

    Symbols: A (r x in) and B (out x r) are PEFT's.
    Uploads: A, r in numbers per module. Down: the same.
    Exact: not applicable, because there is no global model.
    Linear: yes.
    Personal: yes. A new client (the cold-start model) has A and the initial B, which is zero unless the run started
    from an adapter.
    Head in the source: trained and local; here local by default.
    Deviations: none. Under partial participation a client's B is older than the A it meets, as in the paper.
    Reference: Guo et al., Selective Aggregation for Low-Rank Adaptation in Federated Learning, ICLR 2025.
    """

    traits = Traits(exact=False, personal=True, default_head="local")

    def local_init(self, shared: Shared, client: Client) -> Params:
        return pick(shared.params, up)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fit = trainer.fit({**shared.params, **local}, train=down | up | whole)
        return trainer.upload(pick(fit.params, down | whole)), pick(fit.params, up)
