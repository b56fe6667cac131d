from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rondo.algorithm import Algorithm, ServerState, Shared, Trainer, Uploads
from rondo.algorithms.parts.least_squares import least_squares
from rondo.params import Params, pick, up
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FFALinear(Algorithm[ServerState]):
    """FFA-LoRA for linear regression: A stays at its start, B is minimised exactly.

    Update (RoLoRA, section 4.1, "freezing-A scheme"), with p_k the participants' weights, summing to 1, and l_k client
    k's mean squared error on all of its rows::

        client k:  B_k <- argmin_B l_k(A, B)
        server:    B <- sum_k p_k B_k

    The first round reaches the end: later ones repeat it.
    Symbols: the paper's a0 is A transposed (rank 1), its b^FFA is B.
    Needs: a task of least squares.
    Uploads: B, r out numbers per module. Down: the same; a client draws A itself.
    Exact: yes, for any weights and any subset of clients.
    Linear: yes.
    Personal: no.
    Head in the paper: none; here frozen by default.
    Deviations: none.
    Reference: Chen et al., Robust Federated Finetuning of LLMs via Alternating Optimization of LoRA, 2025, proposition
    4.6; the method is Sun et al., ICLR 2024.
    """

    traits = Traits(exact=True, least_squares=True, default_head="frozen")

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        return trainer.upload(pick(least_squares(trainer).solve(shared.params, train=up).params, up)), local
