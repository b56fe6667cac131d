from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, final, get_args

from rondo.algorithm import Algorithm, Client, Round, ServerState, Shared, Trainer, Upload, Uploads, Weight
from rondo.algorithms.parts.product_mean import truncated_mean
from rondo.params import Params, cut_rank, down, head, pick, up

Split = Literal["up", "both"]


@final
@dataclass(frozen=True)
class FlexLoRA(Algorithm[ServerState]):
    """The mean of the clients' products, truncated by SVD to each client's rank.

    Update, with p_k the participants' weights, summing to 1::

        client k:  (A_k, B_k) <- local training of its factors, of rank r_k
        server:    D = sum_k p_k B_k A_k = U S V^T
        down:      the first r_k rows of A = V^T and columns of B = U S       (split = "up")
                   A = sqrt(S) V^T and B = U sqrt(S)                          (split = "both")

    D is never formed: the stacked factors, by QR or their Gram matrices, leave a small core to decompose. One
    factorisation serves every rank, because truncations are nested.
    Symbols: A (r x in) and B (out x r) are PEFT's. The scale is the run's and is not part of D.
    Fields: ``split`` says which factor carries the singular values. It changes how the model trains from there, not the
    model itself.
    Uploads: r_k (in + out) numbers per module. Down: the same.
    Exact: no. The broadcast model is the best of its rank (Eckart-Young), and the error is the part that the SVD drops.
    Linear: no.
    Personal: no.
    Head in the source: none (causal LM); here shared by default.
    Deviations: the server keeps the first r singular directions, r the run's rank, because no client asks for more. If
    there are fewer, the last rows of A stay and their columns of B are zero.
    Reference: Bai et al., Federated Fine-tuning of Large Language Models under Heterogeneous Tasks and Client
    Resources, NeurIPS 2024.
    """

    exact: ClassVar[bool] = False
    client_ranks: ClassVar[bool] = True
    same_coordinates: ClassVar[bool] = False
    split: Split = "up"

    def __post_init__(self) -> None:
        if self.split not in get_args(Split):
            raise ValueError(f"split is one of {', '.join(get_args(Split))}; got {self.split!r}")

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerState:
        return ServerState(params)

    def broadcast(self, state: ServerState, client: Client, round: Round) -> Shared:
        return Shared(cut_rank(state.params, client.rank))

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        trained = down | up | head
        fit = trainer.fit(shared.params, train=trained)
        return trainer.upload(pick(fit.params, trained)), local

    def aggregate(self, state: ServerState, uploads: Iterable[Upload], round: Round) -> ServerState:
        mean = truncated_mean(state.params, list(uploads), balanced=self.split == "both")
        return self.finish(state, mean, round)
