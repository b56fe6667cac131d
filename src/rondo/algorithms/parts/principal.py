"""Factors that are the leading singular directions of the frozen weight."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rondo.algorithm import Weight
from rondo.lowrank import LowRank
from rondo.params import Params, adapted_modules


def principal(params: Params, weights: Mapping[str, Weight]) -> tuple[dict[str, Tensor], dict[str, LowRank]]:
    """A and B of every module in ``params`` from its frozen weight, and the change of the base, in W's units, with
    which the model stays as it is with the factors of ``params``.

    W0 = U S V^T (out x in) gives B = U_r sqrt(S_r / scale) and A = sqrt(S_r / scale) V_r^T of its first r singular
    values, and the base loses scale * B A (Meng et al., PiSSA, 2024, section 3).
    """
    factors: dict[str, Tensor] = {}
    chunks = {}
    for path in adapted_modules(params):
        a, b = params[f"{path}.A"], params[f"{path}.B"]
        scale, rank = weights[path].scale, a.shape[0]
        u, s, vh = torch.linalg.svd(weights[path].matrix().double(), full_matrices=False)
        root = (s[:rank] / scale).sqrt()
        first = LowRank(u[:, :rank] * root, root[:, None] * vh[:rank]).to(a.dtype)
        chunks[path] = -scale * first
        if bool(b.any()):  # an adapter that the run starts from
            chunks[path] += scale * LowRank(b, a)
        factors |= {f"{path}.A": first.down, f"{path}.B": first.up}
    return factors, chunks
