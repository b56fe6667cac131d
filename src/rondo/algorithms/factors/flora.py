from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, BaseState, Client, Round, Shared, Trainer, Upload, Uploads, Weight
from rondo.algorithms.parts.product_mean import pairs, scaled, whole_mean
from rondo.algorithms.parts.scales import ClientScale, check_client_scale, in_runs_scale, sent_to
from rondo.algorithms.parts.training import TRAINED
from rondo.lowrank import LowRank, mean_product
from rondo.params import Params, adapted_modules, pick, stack_clients, up
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FLoRA(Algorithm[BaseState]):
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
    client_scale: ClientScale = "run"

    def __post_init__(self) -> None:
        check_client_scale(self.client_scale)

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> BaseState:
        state = BaseState.start(params, weights)
        adapters = {p: (params[f"{p}.B"], params[f"{p}.A"]) for p in adapted_modules(params) if params[f"{p}.B"].any()}
        state = state.with_chunks({p: LowRank(weights[p].scale * b, a) for p, (b, a) in adapters.items()})
        return replace(state, params={n: torch.zeros_like(t) if up(n) else t for n, t in params.items()})

    def broadcast(self, state: BaseState, client: Client, round: Round) -> Shared:
        return Shared(sent_to(client, state.params, self.client_scale), state.base)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fresh = stack_clients(_fresh(shared.params, c, trainer.round) for c in trainer.clients)
        start = {**shared.params, **fresh}
        fit = trainer.fit(start, train=TRAINED, objective=lambda p, loss: loss(in_runs_scale(p)))
        return trainer.upload(pick(in_runs_scale(fit.params), TRAINED)), local

    def aggregate(self, state: BaseState, uploads: Iterable[Upload], round: Round) -> BaseState:
        received = list(uploads)
        stacks = ((p, mean_product(*pairs(received, p))) for p in adapted_modules(state.params))
        new = self.finish(state, whole_mean(received), round)
        return new.with_chunks(scaled(stacks, state.scale, state.params))

    def view(self, shared: Shared, local: Params) -> Params:
        return in_runs_scale(shared.params)


def _fresh(params: Params, client: Client, round: Round) -> dict[str, Tensor]:
    """New factors of one client (no client axis), in the shapes and dtypes of ``params``, which have a client axis."""
    new: dict[str, Tensor] = {}
    for path in adapted_modules(params):
        a, b = params[f"{path}.A"], params[f"{path}.B"]
        fresh_a, fresh_b = round.factors((b.shape[-2], a.shape[-1]), a.shape[-2], "fresh", client.id, f"{path}.A")
        new |= {f"{path}.A": fresh_a.to(a), f"{path}.B": fresh_b.to(b)}
    return new
