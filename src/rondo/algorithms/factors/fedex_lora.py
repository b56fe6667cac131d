from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

from rondo.algorithm import Algorithm, BaseState, Client, Round, Shared, Trainer, Upload, Uploads, Weight, weighted_mean
from rondo.algorithms.parts.product_mean import pairs, scaled
from rondo.algorithms.parts.training import trained_uploads
from rondo.lowrank import residual
from rondo.params import Params, adapted_modules
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FedExLoRA(Algorithm[BaseState]):
    """FedIT whose server adds to the frozen base the part that averaging factors one by one loses.

    Update, with p_k the participants' weights, summing to 1::

        client k:  (A_k, B_k) <- local training of A and B from (A, B)
        server:    A <- sum_k p_k A_k        B <- sum_k p_k B_k
                   W0 <- W0 + scale * (sum_k p_k B_k A_k - B A)

    The residual equals sum_k p_k (B_k - B)(A_k - A). It is sent as factors of rank <= (K - 1) r, K the number of
    uploads.
    Symbols: A (r x in) and B (out x r) are PEFT's.
    Uploads: A and B, r (in + out) numbers per module.
    Down: A and B, r (in + out) numbers, the residual, (K - 1) r (in + out), and the residuals of the rounds that the
    client missed; or instead of residuals the sum of them all, in * out numbers, where that is smaller.
    Exact: yes.
    Linear: no, the residual needs each client's pair of factors.
    Personal: no.
    Head in the source: trained and averaged; here shared by default.
    Deviations: the weights are the run's (uniform in the authors' code). The residual is added in the orientation of W
    (their code adds its transpose, which only GPT-2's Conv1D wants).
    Reference: Singhal, Ponkshe and Vepakomma, FedEx-LoRA: Exact Aggregation for Federated and Efficient Fine-Tuning of
    Foundation Models, 2024.
    """

    traits = Traits(exact=True)

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> BaseState:
        return BaseState.start(params, weights)

    def broadcast(self, state: BaseState, client: Client, round: Round) -> Shared:
        return Shared(state.params, state.base)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        return trained_uploads(shared.params, trainer), local

    def aggregate(self, state: BaseState, uploads: Iterable[Upload], round: Round) -> BaseState:
        received = list(uploads)
        gaps = ((p, residual(*pairs(received, p))) for p in adapted_modules(state.params))
        new = self.finish(state, weighted_mean(received), round)
        return new.with_chunks(scaled(gaps, state.scale, state.params))
