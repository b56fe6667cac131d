from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, ServerState, Shared, Trainer, Uploads
from rondo.algorithms.parts.training import TRAINED
from rondo.lowrank import polar
from rondo.params import Params, adapted_modules, pick
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FedRotLoRA(Algorithm[ServerState]):
    """FedIT whose clients rotate their factors towards the broadcast ones before they send them.

    Update, with p_k the participants' weights, summing to 1, and t the 0-based round::

        client k:  (A_k, B_k) <- local training of A and B from (A, B)
                   M = A_k A^T (t odd) or B_k^T B (t even, t > 0);   U S V^T = svd(M)
                   R = polar((1 - strength) I + strength U diag(1, .., 1, det(U V^T)) V^T);   no rotation in round 0
                   A_k <- R^T A_k,   B_k <- B_k R
        server:    A <- sum_k p_k A_k        B <- sum_k p_k B_k

    A rotation leaves B_k A_k as it is, and brings A_k or B_k nearer to the broadcast factor. So less is lost when the
    factors are averaged one by one.
    Symbols: A (r x in) and B (out x r) are PEFT's.
    Fields: ``strength``: the paper's lambda, 0.4 to 0.6 in its experiments; 1 is the whole rotation.
    Uploads: A and B, r (in + out) numbers per module. Down: the same.
    Exact: no. What averaging loses is smaller.
    Linear: yes.
    Personal: no.
    Head in the source: none; here shared by default.
    Deviations: none known. With strength 0.5 and a rotation by half a turn no nearest rotation exists; then the part of
    R that has none is left out.
    Reference: Zhang et al., FedRot-LoRA: Mitigating Rotational Misalignment in Federated LoRA, 2026.
    """

    traits = Traits(exact=False)
    strength: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.strength <= 1:
            raise ValueError(f"strength is a share of the rotation, above 0 and at most 1; got {self.strength}")

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        trained = pick(trainer.fit(shared.params, train=TRAINED).params, TRAINED)
        for path in adapted_modules(trained) if trainer.round.index else ():
            a, b = trained[f"{path}.A"].double(), trained[f"{path}.B"].double()
            by_a, sent = trainer.round.index % 2 == 1, shared.params
            turn = self._rotation(a @ sent[f"{path}.A"].double().mT if by_a else b.mT @ sent[f"{path}.B"].double())
            turned = {f"{path}.A": turn.mT @ a, f"{path}.B": b @ turn}
            trained |= {n: t.to(trained[n].dtype) for n, t in turned.items()}
        return trainer.upload(trained), local

    def _rotation(self, overlap: Tensor) -> Tensor:
        """R (K, r, r) of M (K, r, r), in float64."""
        u, _, vh = torch.linalg.svd(overlap)
        sign = torch.ones_like(overlap[..., 0])
        sign[..., -1] = torch.linalg.det(u @ vh).sign()
        still = torch.eye(overlap.shape[-1], dtype=overlap.dtype, device=overlap.device)
        return polar((1 - self.strength) * still + self.strength * (u * sign[..., None, :]) @ vh)
