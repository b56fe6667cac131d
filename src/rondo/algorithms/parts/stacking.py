"""FLoRA's rounds: clients train fresh factors, and their stack, or its leading part, is added to the base."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, BaseState, Client, Round, Shared, Trainer, Upload, Uploads, Weight
from rondo.algorithms.parts.product_mean import pairs, scaled, whole_mean
from rondo.algorithms.parts.scales import ClientScale, check_client_scale, in_runs_scale, sent_to
from rondo.algorithms.parts.training import TRAINED
from rondo.lowrank import LowRank, mean_product
from rondo.params import Params, adapted_modules, pick, stack_clients, up


@dataclass(frozen=True)
class Stacking(Algorithm[BaseState]):
    """Each round the clients train factors of their own, drawn anew, and the stack of all is added to the base."""

    client_scale: ClientScale = "run"

    def __post_init__(self) -> None:
        check_client_scale(self.client_scale)

    def kept(self, stack: LowRank) -> LowRank:
        """The part of a module's ``stack``, in float64, that is added to the base. Default: all of it."""
        return stack

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
        stacks = ((p, self.kept(mean_product(*pairs(received, p)))) for p in adapted_modules(state.params))
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
