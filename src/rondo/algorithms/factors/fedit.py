from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rondo.algorithm import Algorithm, Client, Round, ServerState, Shared, Trainer, Uploads
from rondo.algorithms.parts.training import trained_uploads
from rondo.params import Params, cut_rank
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FedIT(Algorithm[ServerState]):
    """FedAvg of LoRA: both factors are trained, sent and averaged, each by itself.

    Update, with p_k the participants' weights, summing to 1::

        client k:  (A_k, B_k) <- local training of A and B from (A, B)
        server:    A <- sum_k p_k A_k        B <- sum_k p_k B_k

    Symbols: A (r x in) and B (out x r) are PEFT's; delta W = scale * B A. RoLoRA's text calls this method "LoRA",
    FedLoRU's "FedLoRA".
    Client ranks: a client of rank r_k gets the first r_k rows of A and columns of B. Its upload is padded with zeros
    ("zero padding" in FLoRA and HetLoRA), which shrinks the trailing ranks, because fewer clients train them. All
    ranks have the run's scale, alpha / r, so a small rank learns more slowly than LoRA of that rank would.
    Uploads: A and B, r (in + out) numbers per module. Down: the same.
    Exact: no. The mean of products differs from the product of means by sum_k p_k (B_k - Bbar)(A_k - Abar).
    Linear: yes, where clients have no ranks of their own.
    Personal: no.
    Head in the source: none (causal LM); here shared by default.
    Deviations: none. The authors' code weights clients by sample count; the run's ``weighting`` does so here.
    Reference: Zhang et al., Towards Building the Federated GPT: Federated Instruction Tuning, 2023.
    """

    traits = Traits(exact=False, client_ranks=True)

    def broadcast(self, state: ServerState, client: Client, round: Round) -> Shared:
        return Shared(cut_rank(state.params, client.rank))

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        return trained_uploads(shared.params, trainer), local
