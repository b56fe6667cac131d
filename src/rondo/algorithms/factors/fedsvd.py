from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from rondo.algorithm import Algorithm, Mean, Round, ServerState, Shared, Trainer, Uploads
from rondo.algorithms.parts.product_mean import Split, check_split, truncated
from rondo.lowrank import LowRank
from rondo.params import Params, adapted_modules, pick, up, whole
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FedSVD(Algorithm[ServerState]):
    """FFA-LoRA whose server turns the factors into singular vectors, so A follows what was learned.

    Update, with p_k the participants' weights, summing to 1::

        client k:  B_k <- local training of B from (A, B), A fixed
        server:    B <- sum_k p_k B_k;   every ``period`` rounds:  U S V^T = svd(B A)
                   A <- V^T,  B <- U S                      (split = "up")
                   A <- sqrt(S) V^T,  B <- U sqrt(S)        (split = "both")

    The product stays the same. Computed by QR and an SVD of an r x r core.
    Symbols: A (r x in) and B (out x r) are PEFT's.
    Fields: ``period`` is the number of rounds between turns. ``split`` says which factor carries the singular values.
    With "both" and period 1 it is FedASK (Wen et al., NeurIPS 2025) with A frozen, as FedASK has it with noisy steps
    and its authors' code by default (read at c3d2c4c, not run). FedASK's clients send two sketches of B_k A one after
    the other. Of r columns or more, they give back the mean product, whose rank is r. Here the mean of B does. FedASK
    limits the norm of a row's gradient in W, and Rondo in B. With A trained, ``flexlora`` has sketches of one exchange.
    Uploads: B, r out numbers per module. Down: A and B, r (in + out) (B alone after rounds without a turn).
    Exact: yes.
    Linear: yes.
    Personal: no.
    Head in the source: frozen; here frozen by default.
    Deviations: the authors' code has a warm-up before the first turn; here the first turn comes after ``period``
    rounds.
    Reference: Lee et al., FedSVD: Adaptive Orthogonalization for Private Federated Learning with LoRA, 2025.
    """

    traits = Traits(exact=True, server="other", default_head="frozen")
    period: int = 1
    split: Split = "up"

    def __post_init__(self) -> None:
        check_split(self.split)
        if self.period < 1:
            raise ValueError(f"period is a number of rounds, at least 1; got {self.period}")

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fit = trainer.fit(shared.params, train=up | whole)
        return trainer.upload(pick(fit.params, up | whole)), local

    def finish(self, state: ServerState, mean: Mean, round: Round) -> ServerState:
        new = {**state.params, **mean.params}
        if (round.index + 1) % self.period == 0:
            products = ((p, LowRank(new[f"{p}.B"], new[f"{p}.A"])) for p in adapted_modules(new))
            new |= truncated(products, state.params, balanced=self.split == "both")
        return replace(state, params={n: t.to(state.params[n].dtype) for n, t in new.items()})
