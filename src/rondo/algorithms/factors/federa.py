from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, final, get_args

from rondo.algorithm import Algorithm, BaseState, Round, Shared, Trainer, Upload, Uploads, Weight, weighted_mean
from rondo.algorithms.parts.principal import principal
from rondo.algorithms.parts.product_mean import truncated_mean
from rondo.algorithms.parts.training import trained_uploads
from rondo.params import Params
from rondo.traits import Traits

Aggregation = Literal["factors", "product"]


@final
@dataclass(frozen=True)
class FeDeRA(Algorithm[BaseState]):
    """FedIT from factors that are the leading singular directions of the pre-trained weight.

    Start, with W0 = U S V^T (out x in) and the first r singular values::

        B = U_r sqrt(S_r / scale)      A = sqrt(S_r / scale) V_r^T      W0 <- W0 - scale * B A

    so the model starts unchanged. Update, with p_k the participants' weights, summing to 1::

        server:  A <- sum_k p_k A_k     B <- sum_k p_k B_k                             (aggregation = "factors")
                 B A = the best rank-r approximation of sum_k p_k B_k A_k              (aggregation = "product")

    Fields: ``aggregation``. "product" is the method that FLoRG's paper describes under this name: products are averaged
    and factored again by SVD, with the roots of the singular values in both factors.
    Uploads: A and B, r (in + out) numbers per module. Down: the same; a client makes the base's change itself.
    Exact: no.
    Linear: yes with "factors", not with "product".
    Personal: no.
    Head in the source: not known; here shared by default.
    Deviations: none known. The factors are large, so learning rates must be smaller than with a zero start.
    Reference: Yan et al., FeDeRA: Efficient Fine-tuning of Language Models in Federated Learning Leveraging Weight
    Decomposition, 2024; for "product", as described in FLoRG's section 5.
    """

    traits = Traits(exact=False)
    aggregation: Aggregation = "factors"

    def __post_init__(self) -> None:
        if self.aggregation not in get_args(Aggregation):
            raise ValueError(f"aggregation is one of {', '.join(get_args(Aggregation))}; got {self.aggregation!r}")

    @property
    def linear(self) -> bool:
        return self.aggregation == "factors"

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> BaseState:
        factors, chunks = principal(params, weights)
        return BaseState.start({**params, **factors}, weights).with_chunks(chunks)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        return trained_uploads(shared.params, trainer), local

    def aggregate(self, state: BaseState, uploads: Iterable[Upload], round: Round) -> BaseState:
        if self.aggregation == "factors":
            return self.finish(state, weighted_mean(uploads), round)
        return self.finish(state, truncated_mean(state.params, list(uploads), balanced=True), round)
