from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Round, ServerState, Shared, Trainer, Uploads, Weight
from rondo.algorithms.formulas import divisor
from rondo.algorithms.parts.bases import bases, without_cores
from rondo.params import (
    AUXILIARY_PREFIX,
    Params,
    adapted_modules,
    auxiliary,
    core,
    down,
    module_of,
    pick,
    up,
    whole,
)
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class Ravan(Algorithm[ServerState]):
    """Several heads of frozen bases; the small matrix between the bases of each is trained, and a scale of each head.

    Update, with p_k the participants' weights, summing to 1, and heads i = 1 .. h, each of rank r / h::

        delta W = scale * sum_i s_i L_i C_i R_i
        client k:  s_i <- 1;   (C_i, s_i)_k <- local training of all heads, L_i and R_i fixed
        server:    C_i <- sum_k p_k (s_i C_i)_k

    At the same bytes a change has sqrt(h) times the rank of Fed-SB's.
    Start: columns of [L_1 .. L_h] and rows of the R_i are orthonormal over all heads, drawn from the run's seed, and
    C_i = 0. An adapter to start from is decomposed, B A = U S V^T, and the heads share its directions in order.
    Symbols: the paper's B_i, H_i and A_i are L_i (out x r/h), C_i (r/h x r/h) and R_i (r/h x in) here, so r is the rank
    of the whole change. The C_i are stacked.
    Fields: ``heads`` is h, or the largest number below it that divides r is. With 1 it is Fed-SB with a trained scale.
    Uploads: r^2 / h numbers per module. Down: the same; a client makes L_i and R_i itself. s_i stays in the client's
    round.
    Exact: yes, for any weights and any subset of clients, as Fed-SB.
    Linear: yes.
    Personal: no.
    Head in the source: not known; here shared by default.
    Deviations: every client trains all heads. In the source a client of less compute trains the heads with the largest
    weights or gradients, and each head is averaged over the clients that trained it. Of the source's starts of the
    bases this is Gram-Schmidt. A weight decay shrinks s_i too. The full text and the authors' code were not at hand:
    read were the abstract, reviews and a note of the rules.
    Reference: Raje et al., Ravan: Multi-Head Low-Rank Adaptation for Federated Fine-Tuning, NeurIPS 2025
    (arXiv 2506.05568).
    """

    traits = Traits(exact=True)
    heads: int = 4

    def __post_init__(self) -> None:
        if self.heads < 1:
            raise ValueError(f"heads is a number of heads, at least 1; got {self.heads}")

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerState:
        start = pick(params, ~(down | up))
        for path in adapted_modules(params):
            a, b = params[f"{path}.A"], params[f"{path}.B"]
            left, kernel, right = bases(b, a, round.generator("bases", path))
            heads = divisor(len(kernel), self.heads)
            blocks = torch.eye(len(kernel) // heads).to(kernel).repeat(heads, 1)
            cores = kernel.diagonal()[:, None] * blocks
            start |= {f"{path}.{letter}": t.to(a) for letter, t in zip("LCR", (left, cores, right), strict=True)}
        return ServerState(start)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        cores = pick(shared.params, core)
        ones = {_scales(n): t.new_ones(len(t), t.shape[-2] // t.shape[-1], 1, 1) for n, t in cores.items()}
        fit = trainer.fit(
            {**shared.params, **ones},
            train=core | auxiliary | whole,
            objective=lambda p, loss: loss(_seen(p)),
        )
        sent = {n: _folded(fit.params, n).flatten(-3, -2) for n in cores}
        return trainer.upload({**sent, **pick(fit.params, whole)}), local

    def view(self, shared: Shared, local: Params) -> Params:
        return _seen(shared.params)


def _scales(name: str) -> str:
    """The name of the scales of a module's heads, given that of its cores."""
    return f"{AUXILIARY_PREFIX}{module_of(name)}.s"


def _folded(params: Params, name: str) -> Tensor:
    """s_i C_i of a module's heads, (..., h, r/h, r/h), ``name`` being that of its cores; s_i = 1 at the server."""
    width = params[name].shape[-1]
    cores = params[name].reshape(*params[name].shape[:-2], -1, width, width)
    return params[_scales(name)] * cores if _scales(name) in params else cores


def _seen(params: Params) -> dict[str, Tensor]:
    """A = [R_1; ..; R_h] and B = [L_1 s_1 C_1 .. L_h s_h C_h] of every module; other tensors stay as they are."""
    seen = without_cores(params)
    for name in pick(params, core):
        path = module_of(name)
        left = params[f"{path}.L"]
        left = left.reshape(*left.shape[:-1], -1, params[name].shape[-1]).movedim(-2, -3)
        up_factor = (left @ _folded(params, name)).movedim(-3, -2).flatten(-2)
        seen |= {f"{path}.A": params[f"{path}.R"], f"{path}.B": up_factor}
    return seen
