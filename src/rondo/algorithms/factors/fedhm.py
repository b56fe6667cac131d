from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from rondo.algorithm import Algorithm, Client, Round, ServerState, Shared, Trainer, Upload, Uploads
from rondo.algorithms.parts.product_mean import truncated_mean
from rondo.algorithms.parts.training import trained_uploads
from rondo.params import Params, cut_rank
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FedHM(Algorithm[ServerState]):
    """The server averages whole weights; each client gets them factorised at its rank, roots on both sides.

    Update on the change W - W0 of the frozen base, with p_k the participants' weights, summing to 1::

        down:      W - W0 = U S V^T;   A = the first r_k rows of sqrt(S) V^T,   B = the first r_k columns of U sqrt(S)
        client k:  (A_k, B_k) <- local training
        server:    W <- W0 + sum_k p_k B_k A_k

    The weight itself is never formed: the mean of products is truncated in factored form. Truncations are nested, so
    the server keeps the first r directions.
    Symbols: the paper's U and V^T (with the roots inside) are PEFT's B and A.
    Uploads: r_k (in + out) numbers per module. Down: the same.
    Exact: no. Averaging whole weights is exact, but the part that a client's rank cuts off on the way down is lost. The
    global model, and so its scores and its export, is the one cut to the run's rank.
    Linear: no.
    Personal: no.
    Head in the source: a part of the model, averaged; here shared by default.
    Deviations: the paper trains from scratch and factorises W. That would destroy a pre-trained model, so the change is
    factorised here, as the authors' attention variant does (W - W_init); the method is then FlexLoRA with
    ``split = "both"``. All ranks have the run's scale; the paper's factors have none. The paper's equal weights are
    the run's ``weighting = "uniform"``.
    Reference: Yao et al., FedHM: Efficient Federated Learning for Heterogeneous Models via Low-rank Factorization,
    2021.
    """

    traits = Traits(exact=False, client_ranks=True, server="other")

    def broadcast(self, state: ServerState, client: Client, round: Round) -> Shared:
        return Shared(cut_rank(state.params, client.rank))

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        return trained_uploads(shared.params, trainer), local

    def aggregate(self, state: ServerState, uploads: Iterable[Upload], round: Round) -> ServerState:
        return self.finish(state, truncated_mean(state.params, list(uploads), balanced=True), round)
