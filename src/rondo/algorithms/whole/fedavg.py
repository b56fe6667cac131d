from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rondo.algorithm import Algorithm, ServerState, Shared, Trainer, Uploads
from rondo.params import Params
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FedAvg(Algorithm[ServerState]):
    """Everything is trained, sent and averaged.

    Update, with p_k the participants' weights, summing to 1::

        client k:  w_k <- local training of all tensors from w
        server:    w <- sum_k p_k w_k

    Symbols: w are the whole tensors that are trained, head and statistics included. Factors, where there are any, are
    trained and averaged each by itself: on factors alone this is FedIT, bit for bit.
    Uploads: w; A and B, r (in + out) numbers per module. Down: the same.
    Exact: yes, where whole tensors are trained alone. With factors no, as for FedIT.
    Linear: yes.
    Personal: no.
    Head in the source: trained and shared; here shared by default.
    Deviations: none. The paper weights clients by sample count; the run's ``weighting`` does so here.
    Reference: McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017.
    """

    traits = Traits(exact=True, needs_factors=False)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        return trainer.upload(trainer.fit(shared.params).params), local
