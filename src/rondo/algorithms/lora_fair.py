from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch

from rondo.algorithm import Algorithm, Round, ServerState, Shared, Trainer, Upload, Uploads, Weight, weighted_mean
from rondo.params import Params, adapted_modules, down, head, pick, up


@final
@dataclass(frozen=True)
class LoRAFAIR(Algorithm[ServerState]):
    """FedIT whose server corrects B to bring the product closer to the mean of products (Frobenius variant).

    Update, with p_k the participants' weights, summing to 1::

        client k:  (A_k, B_k) <- local training of A and B from (A, B)
        server:    A <- sum_k p_k A_k        Bbar = sum_k p_k B_k        M = sum_k p_k B_k A_k
                   B <- argmin_B' |M - B' A|^2 + penalty |B' - Bbar|^2
                      = (sum_k p_k B_k (A_k A^T) + penalty Bbar) (A A^T + penalty I)^-1

    Computed in r x r algebra; M is never formed.
    Uploads: A and B, r (in + out) numbers per module. Down: the same.
    Exact: no, but as close as a correction of B can get.
    Linear: no.
    Personal: no.
    Head in the source: not known; here shared by default.
    Deviations: the paper maximises a cosine similarity by SGD on the server and adds penalty |B' - Bbar|. This is its
    variant in the squared Frobenius norm, which has a closed form, so the paper's penalty of 0.01 means something else
    here.
    Reference: Bian et al., LoRA-FAIR: Federated LoRA Fine-Tuning with Aggregation and Initialization Refinement, 2024.
    """

    exact: ClassVar[bool] = False
    penalty: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.penalty < math.inf:
            raise ValueError(f"penalty must be positive and finite; got {self.penalty}")

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerState:
        return ServerState(params)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        trained = down | up | head
        fit = trainer.fit(shared.params, train=trained)
        return trainer.upload(pick(fit.params, trained)), local

    def aggregate(self, state: ServerState, uploads: Iterable[Upload], round: Round) -> ServerState:
        received = list(uploads)
        mean = weighted_mean(received)
        new = dict(mean.params)
        for path in adapted_modules(state.params):
            a, b = mean.params[f"{path}.A"], mean.params[f"{path}.B"]
            right = self.penalty * b
            for u in received:
                client_a = u.params[f"{path}.A"].double()
                right = right + u.weight / mean.weight * u.params[f"{path}.B"].double() @ (client_a @ a.mT)
            gram = a @ a.mT + self.penalty * torch.eye(a.shape[0], dtype=a.dtype)
            new[f"{path}.B"] = torch.linalg.solve(gram, right, left=False)
        return self.finish(state, replace(mean, params=new), round)
