from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Round, ServerState, Shared, Trainer, Uploads, Weight
from rondo.lowrank import LowRank
from rondo.params import Params, adapted_modules, cut_rank, down, head, pick, up


@final
@dataclass(frozen=True)
class HetLoRA(Algorithm[ServerState]):
    """Clients of different ranks: truncated on the way down, padded with zeros on the way up, weighted by norm.

    Update, with r_k the rank of client k::

        down:      the first r_k rows of A and columns of B
        client k:  (A_k, B_k) <- local training;   m_k = |B_k A_k|, Frobenius, over all modules
        server:    A <- sum_k q_k pad(A_k)     B <- sum_k q_k pad(B_k)     q_k = m_k / sum_j m_j

    A client knows its own norm (by r x r Grams), so it is simply the weight of its upload, and the server's sum stays
    linear. ``penalty`` adds penalty * |B_tail| |A_tail| to the loss, the tail being what lies beyond the first
    ``keep`` of the ranks: trailing ranks fade where they are not needed.
    Uploads: r_k (in + out) numbers a module and one weight; down the same.
    Exact: no. Linear: yes. Personal: no. Head in the source: causal LM, none; here shared by default, and averaged with
    the same weights.
    Deviations: the run's weighting is not used; padding shrinks trailing ranks that few clients have; a rank whose tail
    has faded is not taken from the client for good (the paper's self-pruning), it just sends small numbers.
    Reference: Cho et al., Heterogeneous LoRA for Federated Fine-tuning of On-Device Foundation Models, EMNLP 2024.
    """

    exact: ClassVar[bool] = False
    client_ranks: ClassVar[bool] = True
    penalty: float = 0.0
    keep: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.penalty < float("inf"):
            raise ValueError(f"penalty must not be negative; got {self.penalty}")
        if not 0 < self.keep <= 1:
            raise ValueError(f"keep is a fraction of the ranks, above 0 and at most 1; got {self.keep}")

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerState:
        return ServerState(params)

    def broadcast(self, state: ServerState, client: Client, round: Round) -> Shared:
        return Shared(cut_rank(state.params, client.rank))

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        trained = down | up | head
        paths = adapted_modules(shared.params)
        fit = trainer.fit(
            shared.params,
            train=trained,
            objective=lambda p, loss: loss(p) + self.penalty * self._tails(p, paths) if self.penalty else loss(p),
        )
        products = [LowRank(fit.params[f"{p}.B"], fit.params[f"{p}.A"]).to(torch.float64) for p in paths]
        norms = torch.stack([m.inner(m) for m in products]).sum(0).clamp_min(0).sqrt()
        # Nobody has learned anything where all norms are zero; a weight must be positive.
        return trainer.upload(pick(fit.params, trained), norms.clamp_min(1e-30)), local

    def _tails(self, params: Params, paths: tuple[str, ...]) -> Tensor:
        """The sum over modules of |B_tail| |A_tail|, shape (K,)."""
        terms = []
        for path in paths:
            a, b = params[f"{path}.A"], params[f"{path}.B"]
            first = max(1, round(self.keep * a.shape[-2]))
            terms.append(b[..., first:].flatten(1).norm(dim=1) * a[..., first:, :].flatten(1).norm(dim=1))
        return torch.stack(terms).sum(0)
