from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rondo.algorithms.parts.stacking import Stacking
from rondo.lowrank import LowRank
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FLoRIST(Stacking):
    """FLoRA that adds only the leading directions of the stack to the base, as many as hold a share of its energy.

    Update, with p_k the participants' weights, summing to 1::

        client k:  A_k and B_k fresh, of rank r_k, B_k A_k = 0;   (A_k, B_k) <- local training
        server:    [B_1 ... B_K] [p_1 A_1; ...; p_K A_K] = U S V^T
                   p <- the least with sum_{i <= p} S_i^2 >= tau sum_i S_i^2;   W0 <- W0 + scale * U_p S_p V_p^T

    So p differs by layer and round. The stack is decomposed by QR and an SVD of its small core.
    Symbols: A (r x in) and B (out x r) are PEFT's; B_g = U_p S_p and A_g = V_p^T.
    Fields: ``tau`` is the share of the energy, above 0 and at most 1, where the method is FLoRA. ``client_scale`` is
    FLoRA's.
    Uploads: r_k (in + out) numbers per module. Down: p (in + out) numbers, p at most sum_k r_k, and those of the rounds
    that the client missed; or the sum of all rounds, in * out numbers, where that is smaller.
    Exact: no; with tau = 1 yes. Each round loses at most a share 1 - tau of the squared norm of its stack.
    Linear: no.
    Personal: no.
    Head in the source: none (causal LM); here shared by default.
    Deviations: the source's two SVDs, of the stack of B and that of A, are QR factorisations, which give the same U, S
    and V. Its clients merge B_g A_g into their base; here server and client both do. The default of ``tau`` is that of
    the authors' code, which was read at 5bd3561 and not run: its rule is this one, but it tells B from A by a side of
    the tensor that equals the rank, so a layer with a side of r numbers would be stacked twice.
    Reference: Ramesh and Dass, FLoRIST: Singular Value Thresholding for Efficient and Accurate Federated Fine-Tuning of
    Large Language Models, MLSys 2026 (arXiv 2506.09199).
    """

    tau: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.tau <= 1:
            what = "tau is a share of the sum of squared singular values, above 0 and at most 1"
            raise ValueError(f"{what}; got {self.tau}")

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        whole = self.tau == 1
        return Traits(exact=whole, lossy=not whole, client_ranks=True, server="other")

    def kept(self, stack: LowRank) -> LowRank:
        u, s, vh = stack.svd()
        energy = s.square().cumsum(0)
        count = int((energy < self.tau * energy[-1]).sum()) + 1
        return LowRank(u[:, :count] * s[:count], vh[:count])
