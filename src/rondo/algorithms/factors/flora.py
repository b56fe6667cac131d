from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rondo.algorithms.parts.stacking import Stacking
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FLoRA(Stacking):
    """Factors are stacked, not averaged, and added to the base; every round starts from fresh factors.

    Update, with p_k the participants' weights, summing to 1::

        client k:  A_k and B_k fresh, of rank r_k, B_k A_k = 0;   (A_k, B_k) <- local training
        server:    W0 <- W0 + scale * [B_1 ... B_K] [p_1 A_1; ...; p_K A_K]

    A client draws its A from its own stream of the round's seed.
    Symbols: A (r x in) and B (out x r) are PEFT's.
    Fields: ``client_scale`` "rank": a client of rank r_k trains at its own scale, scale * r / r_k, which is alpha / r_k
    as in the authors' code, and uploads its B times r / r_k. "run": at the run's scale.
    Uploads: r_k (in + out) numbers per module. Down: the stack, sum_k r_k (in + out) numbers, and the stacks of the
    rounds that the client missed; or the sum of all stacks, in * out numbers, where that is smaller.
    Exact: yes.
    Linear: no.
    Personal: no.
    Head in the source: none (causal LM); here shared by default.
    Deviations: by default one scale for all ranks. p_k is on the stack of B instead of A, which gives the same product.
    An adapter that the run starts from becomes part of the base at once.
    Reference: Wang et al., FLoRA: Federated Fine-Tuning Large Language Models with Heterogeneous Low-Rank Adaptations,
    NeurIPS 2024.
    """

    traits = Traits(exact=True, client_ranks=True, server="other")
