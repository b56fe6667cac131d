from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Round, ServerState, Shared, Trainer, Upload, Uploads
from rondo.algorithms.parts.product_mean import Split, check_split, pairs, truncated, whole_mean
from rondo.algorithms.parts.training import trained_uploads
from rondo.lowrank import LowRank
from rondo.params import Params, adapted_modules, cut_rank
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class RaFLoRA(Algorithm[ServerState]):
    """FlexLoRA whose mean counts each slot of the factors over the clients that have it.

    Update, with p_k the participants' weights, b_kj the column j of B_k and a_kj the row j of A_k::

        client k:  (A_k, B_k) <- local training of its factors, of rank r_k
        server:    D = sum_j sum_{k: r_k >= j} q_kj b_kj a_kj = U S V^T      q_kj = p_k / sum_{i: r_i >= j} p_i
        down:      the first r_k rows of A = V^T and columns of B = U S       (split = "up")
                   A = sqrt(S) V^T and B = U sqrt(S)                          (split = "both")

    In FlexLoRA's mean a slot that few clients have shrinks round by round, until only the smallest rank is left.
    Symbols: A (r x in) and B (out x r) are PEFT's.
    Fields: ``split`` says which factor carries the singular values.
    Uploads: r_k (in + out) numbers per module. Down: the same.
    Exact: no. The mean is not one of the clients' changes, and the SVD drops what is beyond rank r. If all clients have
    rank r, it is FlexLoRA.
    Linear: no.
    Personal: no.
    Head in the source: none; here shared by default.
    Deviations: slots that no client of a round has stay as the server has them.
    Reference: Wu et al., Preventing Rank Collapse in Federated Low-Rank Adaptation with Client Heterogeneity, 2026.
    """

    traits = Traits(exact=False, client_ranks=True, server="other")
    split: Split = "up"

    def __post_init__(self) -> None:
        check_split(self.split)

    def broadcast(self, state: ServerState, client: Client, round: Round) -> Shared:
        return Shared(cut_rank(state.params, client.rank))

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        return trained_uploads(shared.params, trainer), local

    def aggregate(self, state: ServerState, uploads: Iterable[Upload], round: Round) -> ServerState:
        received = list(uploads)
        mean = whole_mean(received)
        products = ((path, _mean_by_slot(state.params, received, path)) for path in adapted_modules(state.params))
        factors = truncated(products, state.params, balanced=self.split == "both")
        return self.finish(state, replace(mean, params={**mean.params, **factors}), round)


def _mean_by_slot(params: Params, uploads: list[Upload], path: str) -> LowRank:
    """D of a module, in float64."""
    ups, downs, weights = pairs(uploads, path)
    a, b = params[f"{path}.A"], params[f"{path}.B"]
    mass = torch.zeros(len(a), dtype=torch.float64)
    for down, weight in zip(downs, weights, strict=True):
        mass[: len(down)] += weight
    shares: list[Tensor] = [weight / mass[: len(down)] for down, weight in zip(downs, weights, strict=True)]
    longest = max(map(len, downs))
    up = torch.cat([*ups, b[:, longest:]], -1).double()
    down = torch.cat([*downs, a[longest:]]).double()
    return LowRank(up * torch.cat([*shares, torch.ones(len(a) - longest, dtype=torch.float64)]).to(up.device), down)
