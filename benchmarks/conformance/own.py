"""Rondo's methods on the same uploads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import oracles
import torch
from oracles import Array, Draw
from torch import Tensor

from rondo import algorithms
from rondo.algorithm import Client, Fit, FitOptions, Round, Shared, Trainer, Upload, Uploads, Weight
from rondo.algorithms.wrappers.server_optimizer import ServerOptimizer, ServerStep
from rondo.params import Params, add_client_axis, client_row

A, B = "q.A", "q.B"


class Given(Trainer):
    """A trainer of one client, for whom training gives the draw's factors where they are trained."""

    def __init__(self, d: Draw, client: int, round: Round) -> None:
        self.factors = {A: torch.tensor(d.a[client])[None], B: torch.tensor(d.b[client])[None]}
        self.clients, self.round, self.lr = (_client(d, client),), round, 0.1

    def fit_with(self, params: Params, options: FitOptions) -> Fit:
        trained = {n: t for n, t in self.factors.items() if options.train(n)}
        one = torch.ones(1)
        return Fit({**params, **trained}, one, one, one)

    def upload(self, params: Params, weight: Tensor | None = None) -> Uploads:
        client = self.clients[0]
        share = client.num_examples if weight is None else float(weight)
        return (Upload(client, client_row(params, 0), share),)


def _client(d: Draw, client: int) -> Client:
    own = {a.shape[0] for a in d.a} != {d.rank}
    return Client(f"client-{client}", d.rows[client], d.a[client].shape[0] if own else None)


def rounds(algorithm: Any, d: Draw, count: int = 1, first: int = 0) -> tuple[Any, Any]:
    """What the server sends after ``count`` rounds of the draw's uploads, the first of number ``first``, and what the
    first client kept."""
    clients, state = [_client(d, k) for k in range(3)], None
    kept: dict[str, Params] = {}
    for index in range(first, first + count):
        at, uploads = Round(index, index + 2, 0, 3), list[Upload]()
        if state is None:
            start = {A: torch.tensor(d.a0), B: torch.zeros(*d.b0.shape, dtype=torch.float64)}
            weight = Weight(d.b[0].shape[:1] + d.a0.shape[1:], d.scale, lambda: torch.zeros(len(d.b[0]), d.a0.shape[1]))
            state = algorithm.init(start, {"q": weight}, at)
        for k, client in enumerate(clients):
            shared = algorithm.broadcast(state, client, at)
            own = kept.get(client.id, algorithm.local_init(shared, client))
            batched = Shared(add_client_axis(shared.params), shared.base)
            sent, after = algorithm.client_update(batched, add_client_axis(own), Given(d, k, at))
            uploads.extend(sent)
            kept[client.id] = client_row(after, 0)
        state = algorithm.aggregate(state, uploads, at)
    shared = algorithm.broadcast(state, clients[0], Round(first + count, first + count + 1, 0, 3))
    return shared, kept[clients[0].id]


def method(name: str, first: int = 0) -> Callable[[Draw], Array]:
    """The change of the first client's weight after the round of number ``first``."""

    def run(d: Draw) -> Array:
        algorithm = algorithms.get(name)
        shared, own = rounds(algorithm, d, first=first)
        seen = algorithm.view(shared, own)
        change = d.scale * seen[B] @ seen[A]
        return (change + shared.base["q"].factors().dense() if "q" in shared.base else change).numpy()

    return run


def optimizer(of: Callable[..., ServerOptimizer]) -> Callable[[Draw], Array]:
    """The change of A after two rounds of FedIT under a server optimizer, with clients of equal weight."""

    def run(d: Draw) -> Array:
        algorithm = ServerStep(algorithms.get("fedit"), of(lr=oracles.ETA, tau=oracles.TAU))
        shared, _ = rounds(algorithm, replace(d, rows=(1, 1, 1)), 2)
        return (shared.params[A] - torch.tensor(d.a0)).numpy()

    return run
