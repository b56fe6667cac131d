from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from rondo.algorithm import Mean, Round, Shared, Trainer, Uploads
from rondo.algorithms.parts.gram import Grams, GramState, aligned, gram_sketch, gram_view
from rondo.params import Params, gram, pick, whole
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FLoRG(Grams):
    """One trained matrix per module; the server averages its Gram matrix and aligns the root of the mean.

    Update (eqs. 1, 3, 4, 6, 7, 11), Q a k x k Gram matrix, k = min(in, out)::

        delta W = scale * L G^T G R
        client n:  G_n <- local training of G
        server:    Q = sum_n p_n G_n^T G_n = P^T Lambda P;   Gtil = Lambda^(1/2) P
                   U S V^T = svd(G Gtil^T);   G <- U V^T Gtil

    Computed in r x r algebra: with G = T V (LQ), clients send (V G_n^T) G_n and the server needs only their mean
    (``gram_sketch`` and ``gram_align`` in ``parts.gram``; equal to the above up to rounding in float64).
    The paper's Theorem 1: its constraint, orthonormal columns of S (r x r'), is infeasible for r' > r, and as a rule
    r' is min(k, K r) for K participants. U V^T then has the largest trace (eq. 10), but is not the nearest (eq. 8).
    For G = (1, 0) and two clients at (1, 0.5) and (1, -0.1) the squared distance is 0.04 at U V^T, and an S with
    orthonormal rows reaches 0.0106. Lemma 2 holds for r' <= r where G Gtil^T has full rank.
    Symbols: the paper's A is G here; its L, R and Q keep their names. The network applies (L G^T)((G R) x).
    Fields:
    - ``bases``: how L (out x k) and R (k x in) start (section 4.4).
    - ``gram_init`` and ``gram_std``: how G starts. The paper does not say; G = 0 would never move, because its gradient
      is zero.
    - ``offset``: subtract scale * L G1^T G1 R from the base, so the first model is the pre-trained one. Without it the
      first model is some percent of |W| away from it (2 to 7 % in MiniLM's query and value, docs/dev/log/methods.md,
      "FLoRG's start").
    Uploads: r k numbers per module. Down: the same; a client makes L, R and the offset itself.
    Exact: only while the mean Gram matrix has rank <= r; beyond that, its Nystrom approximation from G.
    Linear: yes.
    Personal: no.
    Head in the paper: not stated; here shared by default.
    Deviations: p over the participants (the paper: 1/N). Singular directions absent from the mean stay zero.
    Reference: Meng, Tang and Wong, FLoRG: Federated Fine-tuning with Low-rank Gram Matrices and Procrustes Alignment,
    2026.
    """

    traits = Traits(exact=False, server="other", readable=False)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fit = trainer.fit(shared.params, train=gram | whole, objective=lambda p, loss: loss(gram_view(p)))
        sketches = {n: gram_sketch(shared.params[n], g) for n, g in pick(fit.params, gram).items()}
        return trainer.upload({**sketches, **pick(fit.params, whole)}), local

    def finish(self, state: GramState, mean: Mean, round: Round) -> GramState:
        new = {n: t.to(state.params[n].dtype) for n, t in pick(mean.params, whole).items()}
        new |= aligned(state.params, pick(mean.params, gram))
        return replace(state, params={**state.params, **new})
