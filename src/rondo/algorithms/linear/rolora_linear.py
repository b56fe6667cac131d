from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

from rondo.algorithm import Algorithm, Mean, Round, ServerState, Shared, Trainer, Uploads, Weight
from rondo.algorithms.parts.least_squares import least_squares, orthonormal_rows
from rondo.params import Params, down, pick, up
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class RoLoRALinear(Algorithm[ServerState]):
    """RoLoRA for linear regression: B is minimised exactly, then A takes one gradient step and is normalised.

    Update (Algorithm 2; an iteration of the paper is two rounds here), with t the round and p_k the participants'
    weights, summing to 1, and l_k client k's mean squared error on all of its rows::

        t even:  B_k <- argmin_B l_k(A, B);              B <- sum_k p_k B_k
        t odd:   A_k <- A - lr grad_A l_k(A, B);         A <- sum_k p_k A_k, rows orthonormal

    Symbols: the paper's unit vector a is A transposed (rank 1), its b is B, its eta ``train.lr``. There is no scale. A
    starts with orthonormal rows.
    Needs: a task of least squares, sgd without momentum, decay and clipping, and batches of all rows.
    Uploads: r out numbers per module in even rounds, r in in odd ones. Down: the factors that the client lacks.
    Exact: no. Each mean is exact; A's normalisation is not, and B stays as it was until it is minimised again.
    Linear: yes.
    Personal: no.
    Head in the paper: none; here frozen by default.
    Deviations: the paper has rank 1. For larger ranks rows are made orthonormal by QR, as FedRep's are.
    Reference: Chen et al., Robust Federated Finetuning of LLMs via Alternating Optimization of LoRA, 2025.
    """

    traits = Traits(exact=False, least_squares=True, plain_sgd=True, default_head="frozen")

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerState:
        return ServerState(_with_unit_rows(params))

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        if trainer.round.index % 2 == 0:
            return trainer.upload(pick(least_squares(trainer).solve(shared.params, train=up).params, up)), local
        return trainer.upload(pick(trainer.fit(shared.params, train=down, steps=1).params, down)), local

    def finish(self, state: ServerState, mean: Mean, round: Round) -> ServerState:
        return super().finish(state, replace(mean, params=_with_unit_rows(mean.params)), round)


def _with_unit_rows(params: Params) -> Params:
    """``params`` with orthonormal rows in every A."""
    return {**params, **{name: orthonormal_rows(a) for name, a in pick(params, down).items()}}
