from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from rondo.algorithm import Algorithm, Client, ServerState, Shared, Trainer, Uploads
from rondo.algorithms.parts.training import TRAINED
from rondo.params import Params, buffer, pick
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class L2GD(Algorithm[ServerState]):
    """Every client has a model of its own; a coin decides in each iteration between local training and a pull.

    Update, with x_k the model of client k, m the mean of the models and n the number of clients::

        each iteration, for all clients:
        with probability 1 - p:   x_k <- x_k - alpha / (n (1 - p)) * gradient of f_k at x_k
        with probability p:       x_k <- x_k - alpha lam / (n p) * (x_k - m)

    A pull leaves m as it is, so clients must speak only when a pull follows a local iteration. A round is that exchange
    and the iterations up to the next one: P pulls, then L local iterations, and x_k goes up. P and L are the lengths of
    the coin's runs, at least 1, 1 / (1 - p) and 1 / p on average. The round's own random numbers draw them, the same
    for all clients.
    A local iteration is the run's local training: with ``train.local_steps = 1``, the paper's single step. The learning
    rate is alpha / (n (1 - p)), so a pull goes (1 - p) / p * lam * learning rate of the way to m, and never beyond it.
    Symbols: the paper's lambda is ``lam``, its xi is the coin.
    Fields: ``lam``: 0 trains every client alone; ``p``: the probability of a pull, between 0 and 1.
    Uploads: x_k, as FedAvg; r (in + out) numbers per module for factors. Down: m, the same.
    Exact: no, the models are the clients' own.
    Linear: yes. A run's ``[server] optimizer`` is refused: m is the mean of the models by definition.
    Personal: yes. A new client (the cold-start model) starts from m.
    Head in the source: a part of the model; here shared by default: each client's own, pulled to their mean.
    Deviations: m is over the participants of the last round; the paper has all clients in every iteration. Its equal
    weights are the run's ``weighting = "uniform"``. FedRep's comparison counts every iteration as a round and runs
    local epochs with momentum in place of one step. Statistics (batch normalisation) are each client's own and are not
    pulled.
    Reference: Hanzely et al. (Hanzely and Richtarik), Federated Learning of a Mixture of Global and Local Models, 2020,
    algorithm 1 and section 4.
    """

    traits = Traits(exact=False, needs_factors=False, personal=True, server="step")
    lam: float = 1.0
    p: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.lam < float("inf"):
            raise ValueError(f"lam must not be negative; got {self.lam}")
        if not 0 < self.p < 1:
            raise ValueError(f"p is a probability between 0 and 1, without either; got {self.p}")

    def local_init(self, shared: Shared, client: Client) -> Params:
        return shared.params

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        coin = trainer.round.generator("l2gd")
        pulls, iterations = _run_length(self.p, coin), _run_length(1 - self.p, coin)
        pull = min(1.0, (1 - self.p) / self.p * self.lam * trainer.lr)
        left = (1 - pull) ** pulls
        mean = shared.params
        x: Params = {n: t if buffer(n) else left * t + (1 - left) * mean[n] for n, t in local.items()}
        for _ in range(iterations):
            x = trainer.fit(x, train=TRAINED).params
        return trainer.upload(pick(x, TRAINED)), x

    def adapt(self, shared: Shared, local: Params, trainer: Trainer) -> Params:
        """The clients' models after one local iteration."""
        return trainer.fit(local, train=TRAINED).params


def _run_length(chance: float, coin: torch.Generator) -> int:
    """The number of iterations in a run that goes on after each of them with probability ``chance``."""
    length = 1
    while float(torch.rand((), generator=coin, dtype=torch.float64)) < chance:
        length += 1
    return length
