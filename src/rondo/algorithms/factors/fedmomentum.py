from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import final

from rondo.algorithm import Algorithm, BaseState, Round, Shared, Trainer, Upload, Uploads, Weight
from rondo.algorithms.parts.product_mean import pairs, whole_mean
from rondo.algorithms.parts.training import trained_uploads
from rondo.lowrank import LowRank, mean_product, top_factors
from rondo.params import Params, adapted_modules
from rondo.traits import Traits


@dataclass(frozen=True)
class MomentumState(BaseState):
    """The server's tensors and its change of the base, and the rests that wait for the next merge, in W's units."""

    pending: Mapping[str, LowRank] = field(default_factory=dict)


@final
@dataclass(frozen=True)
class FedMomentum(Algorithm[MomentumState]):
    """The leading part of the mean product stays in the factors, and the rest is added to the base.

    Update, with p_k the participants' weights, summing to 1, and t the 0-based round::

        client k:  (A_k, B_k) <- local training of A and B from (A, B)
        server:    D = sum_k p_k B_k A_k = U S V^T
                   A <- sqrt(S_r) V_r^T,   B <- U_r sqrt(S_r),   the first r directions;   P <- P + D - B A
                   if (t + 1) mod tau = 0:   W0 <- W0 + scale * P,   P <- 0

    The factors go on from the directions in which they moved most, where FLoRA begins with fresh ones.
    Symbols: A (r x in) and B (out x r) are PEFT's; P, the rest, is zero at first.
    Fields: ``tau`` is the number of rounds between merges. Until a merge the model lacks P.
    Uploads: A and B, r (in + out) numbers per module. Down: A and B and, after a merge, P as factors of rank
    tau (min(K r, in, out) - r), or the sum of all merges, in * out numbers, where that is smaller.
    Exact: yes; with tau above 1 up to the rest that waits.
    Linear: no.
    Personal: no.
    Head in the source: none (causal LM); here shared by default.
    Deviations: the singular directions are exact, where the paper's are randomised.
    Reference: Yan et al., FedMomentum: Preserving LoRA Training Momentum in Federated Fine-Tuning, 2026.
    """

    tau: int = 1

    def __post_init__(self) -> None:
        if self.tau < 1:
            raise ValueError(f"tau is a number of rounds, at least 1; got {self.tau}")

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        return Traits(exact=self.tau == 1, server="other")

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> MomentumState:
        start = BaseState.start(params, weights)
        return MomentumState(start.params, start.base, start.scale)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        return trained_uploads(shared.params, trainer), local

    def aggregate(self, state: MomentumState, uploads: Iterable[Upload], round: Round) -> MomentumState:
        received = list(uploads)
        mean, pending = whole_mean(received), dict(state.pending)
        for path in adapted_modules(state.params):
            a, b = state.params[f"{path}.A"], state.params[f"{path}.B"]
            product = mean_product(*pairs(received, path))
            best = top_factors(product, LowRank(b, a), balanced=True)
            mean = replace(mean, params={**mean.params, f"{path}.A": best.down, f"{path}.B": best.up})
            u, s, vh = product.svd()
            rest = LowRank(state.scale[path] * u[:, len(a) :] * s[len(a) :], vh[len(a) :])
            pending[path] = pending[path] + rest if path in pending else rest
        new = replace(self.finish(state, mean, round), pending=pending)
        if (round.index + 1) % self.tau != 0:
            return new
        chunks = {path: rest.to(state.params[f"{path}.A"].dtype) for path, rest in pending.items()}
        return replace(new.with_chunks(chunks), pending={})
