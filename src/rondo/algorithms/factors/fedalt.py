from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Round, Shared, Trainer, Upload, Uploads, Weight, weighted_mean
from rondo.params import (
    Params,
    adapted_modules,
    cast_like,
    down,
    kaiming,
    module_of,
    personal,
    pick,
    router,
    up,
    whole,
)
from rondo.traits import Traits


@dataclass(frozen=True)
class OthersState:
    """The server of a method that sends each client the mean of the others' last factors."""

    params: Params
    """The whole tensors and the first routers, and as A and B the mean of all clients' last ones."""
    last: Mapping[str, Params]
    """A and B that a client uploaded last, by client id."""
    weights: Mapping[str, float]
    """The weight of that upload."""
    total: Params
    """The sum of all of ``last`` by weight, in float64; empty before the first round."""


@final
@dataclass(frozen=True)
class FedALT(Algorithm[OthersState]):
    """A client's own pair beside the mean of the others' pairs, which a small router of its own weighs for each token.

    Update, with w_j the weights of the clients and x the input of a layer::

        change of W x = scale * (g_1(x) B_k A_k x + g_2(x) B_-k A_-k x),   g(x) = softmax(G_k x)
        client k:  (B_k, A_k, G_k) <- local training from those that it kept, B_-k and A_-k fixed
        server:    A_-k <- sum_{j != k} w_j A_j / sum_{j != k} w_j,   B_-k likewise

    A client never trains a mean: it goes on from its own pair. Of a client that is not in a round its last pair counts.
    While it is the only one, it has its own last pair as the others' mean.
    Symbols: the paper's individual LoRA is A_k (r x in) and B_k (out x r), pA and pB in the code; its rest-of-world
    LoRA is A_-k and B_-k; its mixer is G_k (2 x in), the tensor ``<module>.router``.
    Uploads: A_k and B_k, r (in + out) numbers per module. Down: A_-k and B_-k, as many (the first router once): of two
    clients each is sent the other's upload. The router stays with its client. The server keeps a pair for every client
    that ever took part.
    Exact: not applicable, because there is no global model.
    Linear: no. A client's own upload is left out of what it is sent.
    Personal: yes. A new client starts its own pair from the mean of all, so the cold-start model is that mean, whatever
    the router says: ``rondo export`` writes it. A client's own model has no single matrix per layer, which PEFT would
    need: ``rondo predict --client`` and ``rondo evaluate --client`` serve it.
    Head in the source: a language model's, which is frozen; here shared by default, and the mean of the round's.
    Deviations: weights are the run's ``weighting``. The authors' code has every client in every round, weighs equally
    ("uniform") and draws a start for each client; here all clients start alike. Not for convolutions, magnitudes or
    networks that are trained whole. The paper's full text was not at hand: read were its abstract, its introduction and
    the authors' code (jmbian/FedALT, 8be3dde), which decides the router's place, form and start and what is averaged.
    Reference: Bian et al., FedALT: Federated Fine-Tuning Through Adaptive Local Training with Rest-of-World LoRA, AAAI
    2026 (arXiv 2503.11880).
    """

    traits = Traits(exact=False, personal=True, server="others", gated=True)

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> OthersState:
        routers = {}
        for path in adapted_modules(params):
            a = params[f"{path}.A"]
            routers[f"{path}.router"] = kaiming(2, a.shape[1], round.generator("router", path)).to(a)
        return OthersState({**params, **routers}, {}, {}, {})

    def broadcast(self, state: OthersState, client: Client, round: Round) -> Shared:
        own = state.weights.get(client.id, 0.0)
        rest = sum(state.weights.values()) - own
        if own == 0.0 or len(state.weights) == 1:
            return Shared(state.params)
        last = state.last[client.id]
        others = {n: (t - own * last[n].double()) / rest for n, t in state.total.items()}
        return Shared({**state.params, **cast_like(others, state.params)})

    def local_init(self, shared: Shared, client: Client) -> Params:
        own = {_own(n): t for n, t in pick(shared.params, down | up).items()}
        return {**own, **pick(shared.params, router)}

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        fit = trainer.fit(
            {**shared.params, **local}, train=personal | router | whole, objective=lambda p, loss: loss(_seen(p))
        )
        own = {n: fit.params[_own(n)] for n in pick(fit.params, down | up)}
        return trainer.upload({**own, **pick(fit.params, whole)}), pick(fit.params, personal | router)

    def aggregate(self, state: OthersState, uploads: Iterable[Upload], round: Round) -> OthersState:
        given = list(uploads)
        mean = weighted_mean(replace(u, params=pick(u.params, whole)) for u in given)
        last = {**state.last, **{u.client.id: pick(u.params, down | up) for u in given}}
        weights = {**state.weights, **{u.client.id: u.weight for u in given}}
        total: dict[str, Tensor] = {}
        for client in sorted(last):
            for name, tensor in last[client].items():
                total[name] = total.get(name, 0.0) + weights[client] * tensor.double()
        mass = sum(weights[client] for client in sorted(last))
        means = {**mean.params, **{n: t / mass for n, t in total.items()}}
        return OthersState({**state.params, **cast_like(means, state.params)}, last, weights, total)

    def view(self, shared: Shared, local: Params) -> Params:
        return _seen({**shared.params, **local})


def _own(name: str) -> str:
    """The name of a client's own factor, given that of the others' mean."""
    return f"{module_of(name)}.p{name[-1]}"


def _seen(params: Params) -> dict[str, Tensor]:
    """A = [A_k; A_-k], B = [B_k B_-k] and the router; A_-k and B_-k alone where a client has no own pair. A client axis
    may lead."""
    seen = pick(params, ~personal)
    if not pick(params, personal):
        return pick(seen, ~router)
    for name in pick(params, down | up):
        seen[name] = torch.cat([params[_own(name)], params[name]], -2 if down(name) else -1)
    return seen
