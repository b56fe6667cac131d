from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rondo.algorithm import Shared, Trainer, Uploads
from rondo.algorithms.parts.accumulation import Accumulating
from rondo.algorithms.parts.training import trained_uploads
from rondo.params import Params
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FedLoRU(Accumulating):
    """FedIT whose factors are added to the base every ``tau`` rounds, so the whole update's rank grows.

    Update (Algorithm 1), with p_k the participants' weights, summing to 1, and t the 0-based round::

        client k:  (A_k, B_k) <- local training of A and B from (A, B)
        server:    A <- sum_k p_k A_k        B <- sum_k p_k B_k
                   if (t + 1) mod tau = 0:   W <- W + scale * B A;   restart A and B

    Symbols: the paper's A (m x r, Kaiming) and B (r x n, zero) are, by their start, PEFT's A and B; its alpha is the
    scale.
    Fields:
    - ``tau`` is the number of rounds between merges.
    - ``restart`` "random": A and B start anew as PEFT starts them (``init_lora_weights``: Kaiming A by default, as in
      the paper's section 5.1; "gaussian" as in its appendix D.2). B A = 0, so the model stays the same. "momentum": A
      and B stay, so the model moves by another scale * B A (the algorithm box, taken literally).
    Uploads: A and B, r (in + out) numbers per module. Down: the same, and after a merge the product just added to the
    base, min(r (in + out), in * out) numbers; a client that missed merges gets their products or, where that is
    smaller, the sum of all of them.
    Exact: no.
    Linear: yes.
    Personal: no.
    Head in the source: a part of the model, averaged; here shared by default.
    Deviations: p_k over the participants (the paper's sum need not reach 1). Training after the last merge is part of
    the result (the paper's formula drops it). The base stays untouched beside the sum of its changes, always; the paper
    does so with past (A, B) in its form for fine-tuning (appendix C.1). An export joins or merges the sum.
    Reference: Park and Klabjan, Communication-Efficient Federated Low-Rank Update Algorithm and its Connection to
    Implicit Regularization, 2024.
    """

    traits = Traits(exact=False, server="restart")

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        return trained_uploads(shared.params, trainer), local
