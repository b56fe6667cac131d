from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, final, get_args

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Round, ServerState, Shared, Trainer, Upload, Uploads, weighted_mean
from rondo.algorithms.parts.product_mean import pairs
from rondo.algorithms.parts.training import trained_uploads
from rondo.lowrank import mean_product
from rondo.params import Params, adapted_modules
from rondo.traits import Traits

FairObjective: TypeAlias = Literal["cosine", "frobenius"]

_EXPONENTS = (-12, 16, 64)
"""The grid of the search for the cosine's minimum: powers of ten from, to, and their number."""
_REFINEMENTS = 9
"""Steps that narrow the search, each to a 63rd."""


@final
@dataclass(frozen=True)
class LoRAFAIR(Algorithm[ServerState]):
    """FedIT whose server corrects B to bring the product closer to the mean of products.

    Update (eq. 8), with p_k the participants' weights, summing to 1::

        client k:  (A_k, B_k) <- local training of A and B from (A, B)
        server:    A <- sum_k p_k A_k        Bbar = sum_k p_k B_k        M = sum_k p_k B_k A_k
                   B <- argmin_B' penalty |B' - Bbar| - cos(M, B' A)               (objective = "cosine")
                   B <- argmin_B' penalty |B' - Bbar|^2 + |M - B' A|^2             (objective = "frobenius")

    with Frobenius norms, cos(X, Y) = <X, Y> / (|X| |Y|) over the whole matrix. With A = U S V^T, M is needed only
    as M V (out x r) and its norm, so M is never formed. "frobenius" has a closed form. The minima of "cosine" lie on a
    curve with one parameter, which is searched (:func:`_most_similar`).
    Fields: ``objective``: "cosine" is the paper's. "frobenius" takes the product itself to the mean of products, not
    only its direction. ``penalty``: the paper's lambda, 0.01 in its experiments. It means something else in each.
    Uploads: A and B, r (in + out) numbers per module. Down: the same.
    Exact: no, but as close as a correction of B can get.
    Linear: no.
    Personal: no.
    Head in the source: not known; here shared by default.
    Deviations: the paper's server takes SGD steps on eq. 8, whose number and rate it does not give; here the minimum is
    found. If the cosine is not defined, because M or the product of the means is zero, B is the mean.
    Reference: Bian et al., LoRA-FAIR: Federated LoRA Fine-Tuning with Aggregation and Initialization Refinement, 2024.
    """

    traits = Traits(exact=False)
    objective: FairObjective = "cosine"
    penalty: float = 0.01

    def __post_init__(self) -> None:
        if self.objective not in get_args(FairObjective):
            raise ValueError(f"objective is one of {', '.join(get_args(FairObjective))}; got {self.objective!r}")
        if not 0 < self.penalty < math.inf:
            raise ValueError(f"penalty must be positive and finite; got {self.penalty}")

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        return trained_uploads(shared.params, trainer), local

    def aggregate(self, state: ServerState, uploads: Iterable[Upload], round: Round) -> ServerState:
        received = list(uploads)
        mean = weighted_mean(received)
        new = dict(mean.params)
        for path in adapted_modules(state.params):
            b, target = mean.params[f"{path}.B"], mean_product(*pairs(received, path))
            u, s, vh = torch.linalg.svd(mean.params[f"{path}.A"], full_matrices=False)
            projected = target.up @ (target.down @ vh.mT)
            if self.objective == "cosine":
                correction = _most_similar(projected, float(target.norm()), s, b @ u, self.penalty)
            else:
                correction = _nearest(projected, s, b @ u, self.penalty)
            new[f"{path}.B"] = b + correction @ u.mT
        return self.finish(state, replace(mean, params=new), round)


def _nearest(projected: Tensor, s: Tensor, b: Tensor, penalty: float) -> Tensor:
    """The X (out, r) that minimises |MV - (b + X) S|^2 + penalty |X|^2; MV is ``projected``. Finite for any s."""
    return (projected - b * s) * (s / (s.square() + penalty))


def _most_similar(projected: Tensor, norm: float, s: Tensor, b: Tensor, penalty: float) -> Tensor:
    """The X (out, r) that minimises penalty |X| - <t, Z> / |Z|, with t = MV / |M|, Z = (b + X) S;
    ``norm`` is |M|.

    Where the gradient is zero, X = (a t S - d b S^2) / (1 + d S^2) column by column, for two numbers a and d. The angle
    fixes a for a given d (a quadratic equation), so d alone is searched: first the best of a grid, then, within its
    neighbours, the zero of the slope penalty - |X| / (a |Z|). Zero if that is no better than X = 0, or if no cosine is
    defined.
    """
    still = torch.zeros_like(b)
    if norm == 0 or not bool((b * s).any()):
        return still
    t, s = projected / norm, s / s[0]  # the scale of A cancels
    bb, tb, tt = (b * b).sum(0), (t * b).sum(0), (t * t).sum(0)
    along = torch.where(bb > 0, tb / bb, 0.0)
    across = (t - along * b).square().sum(0)  # of t, column by column: along b and across it

    def curve(d: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """a, |X|, |Z| and <t, Z> for each d (n, 1)."""
        w = 1 / (1 + d * s.square())
        w2 = (s * w).square()
        c2, c1, c0 = (w2 * tt).sum(1), (w.square() * s * tb * (1 - d * s.square())).sum(1), (w2 * d * bb).sum(1)
        root = (c1.square() + 4 * c2 * c0).sqrt()
        a = torch.where(c1 > 0, 2 * c0 / (c1 + root), (root - c1) / (2 * c2))[:, None]
        moved = (w2 * ((a * along - d * s).square() * bb + a.square() * across)).sum(1).sqrt()
        length = (w2 * ((1 + a * s * along).square() * bb + (a * s).square() * across)).sum(1).sqrt()
        return a, moved, length, (s * w * (tb + a * s * tt)).sum(1)

    exponents = torch.linspace(*_EXPONENTS, dtype=s.dtype)
    _, moved, length, inner = curve(10 ** exponents[:, None])
    best = int((penalty * moved - inner / length).nan_to_num(nan=math.inf).argmin())
    low, high = exponents[max(best - 1, 0)], exponents[min(best + 1, len(exponents) - 1)]
    for _ in range(_REFINEMENTS):
        exponents = low + (high - low) * torch.linspace(0, 1, 64, dtype=s.dtype)
        a, moved, length, _ = curve(10 ** exponents[:, None])
        falling = int((moved > penalty * a[:, 0] * length).sum())
        low, high = exponents[max(falling - 1, 0)], exponents[min(falling, 63)]
    d = 10 ** high.reshape(1, 1)
    a, moved, length, inner = curve(d)
    gain = inner / length - (s * tb).sum() / (b * s).norm() - penalty * moved
    return (a * t * s - d * b * s.square()) / (1 + d * s.square()) if bool(gain > 0) else still
