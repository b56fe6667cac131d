from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rondo.algorithm import Algorithm, Round, ServerState, Shared, Trainer, Uploads
from rondo.params import Params, Select, down, pick, up, whole
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class RoLoRA(Algorithm[ServerState]):
    """The factors take turns: only B is trained, sent and averaged in one round, only A in the next.

    Update (Algorithm 1; the paper's odd rounds are even 0-based indices), with t the round and p_k the participants'
    weights, summing to 1::

        t even:  B_k <- local training of B, A fixed;   B <- sum_k p_k B_k
        t odd:   A_k <- local training of A, B fixed;   A <- sum_k p_k A_k

    B goes first, because with B = 0 the gradient of A is zero.
    Symbols: the paper writes W0 + alpha A B for row vectors. Its A (d x r) is PEFT's A transposed, its B (r x d) PEFT's
    B transposed, its alpha our scale.
    Fields: ``alternate_for`` is the fraction of rounds that alternate. After them A is frozen and every round trains B
    (the ablation of section 5.3; 1.0 is RoLoRA, 0.0 is FFA-LoRA).
    Uploads: r out numbers per module in even rounds, r in in odd ones. Down: the factors that the client lacks, i.e.
    the one just averaged, or both for a client that missed rounds.
    Exact: yes, in both kinds of round.
    Linear: yes.
    Personal: no.
    Head in the paper: not stated; here shared by default, trained and sent in every round beside the active factor.
    Deviations: the paper's full participation and uniform weights are settings of the run here.
    Reference: Chen et al., Robust Federated Finetuning of LLMs via Alternating Optimization of LoRA, 2025.
    """

    traits = Traits(exact=True)
    alternate_for: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.alternate_for <= 1:
            raise ValueError(f"alternate_for is a fraction of the rounds, 0 to 1; got {self.alternate_for}")

    @property
    def by_total(self) -> str | None:
        return "alternate_for" if 0 < self.alternate_for < 1 else None

    def active(self, round: Round) -> Select:
        """The round's factor: DOWN in odd rounds while alternating, else UP."""
        alternating = round.index < self.alternate_for * round.total
        return down if alternating and round.index % 2 == 1 else up

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        trained = self.active(trainer.round) | whole
        fit = trainer.fit(shared.params, train=trained)
        return trainer.upload(pick(fit.params, trained)), local
