from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import final

import torch

from rondo.algorithm import Round, Shared, Trainer, Upload, Uploads, weighted_mean
from rondo.algorithms.parts.gram import Grams, GramState, gram_top, gram_view
from rondo.params import Params, gram, pick, whole
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FLoRGUnaligned(Grams):
    """FLoRG without Procrustes alignment: the root of the mean Gram matrix is used as its eigenvectors give it.

    Update (eqs. 1, 3, 4, 6, 7), Q a k x k Gram matrix, k = min(in, out)::

        delta W = scale * L G^T G R
        client n:  G_n <- local training of G
        server:    Q = sum_n p_n G_n^T G_n = P^T Lambda P;   G <- the top r rows of Lambda^(1/2) P

    Computed from the stack of sqrt(p_n) G_n, never from the k x k matrix (``gram_top`` in ``parts.gram``).
    Symbols and fields: as in FLoRG's card.
    Uploads: G, r k numbers per module. Down: the same; a client makes L, R and the offset itself.
    Exact: only while the mean Gram matrix has rank <= r; beyond that, its best approximation of rank r.
    Linear: no, the eigenvectors need the individual uploads.
    Personal: no.
    Head in the paper: not stated; here shared by default.
    Deviations: the paper leaves open which r of the r' rows are kept, and the rows' signs. Here the largest eigenvalues
    are kept, and each row's entry of largest magnitude is positive.
    Reference: Meng, Tang and Wong, FLoRG, 2026: the ablation of its section 4.4 (Table 3).
    """

    traits = Traits(exact=False)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fit = trainer.fit(shared.params, train=gram | whole, objective=lambda p, loss: loss(gram_view(p)))
        return trainer.upload(pick(fit.params, gram | whole)), local

    def aggregate(self, state: GramState, uploads: Iterable[Upload], round: Round) -> GramState:
        received = list(uploads)
        state = super().finish(
            state, weighted_mean([replace(u, params=pick(u.params, whole)) for u in received]), round
        )
        mass = sum(u.weight for u in received)
        new = {}
        for name, old in pick(state.params, gram).items():
            stack = torch.cat([math.sqrt(u.weight / mass) * u.params[name].double() for u in received])
            new[name] = gram_top(stack, old.shape[0]).to(old.dtype)
        return replace(state, params={**state.params, **new})
