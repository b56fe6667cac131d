from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rondo.algorithm import Algorithm, Client, ServerState, Shared, Trainer, Uploads
from rondo.algorithms.parts.training import TRAINED, pulled
from rondo.params import Params, buffer, pick
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FedMTL(Algorithm[ServerState]):
    """Every client has a model of its own, held near the mean of all: multi-task learning, mean-regularised.

    Update, with w_k the model of client k, m the mean and p_k the participants' weights, summing to 1::

        client k:  w_k <- local training from w_k of  f_k(w) + lam / 2 |w - m|^2
        server:    m <- sum_k p_k w_k

    The problem is min over W of sum_k f_k(w_k) + lambda_1 tr(W Omega W^T) + lambda_2 |W|^2, with W = (w_1, ..., w_n).
    For n clients and Omega = (I - 1 1^T / n)^2, the second term is lambda_1 sum_k |w_k - m|^2. Its gradient in w_k is
    2 lambda_1 (w_k - m), the same as with m fixed, so lam = 2 lambda_1. lambda_2 is the run's ``train.weight_decay``.
    Symbols: the paper's Omega relates the clients' tasks.
    Fields: ``lam``: 0 trains every client alone.
    Uploads: w_k, as FedAvg; r (in + out) numbers per module for factors. Down: m, the same.
    Exact: no, the models are the clients' own.
    Linear: yes. A run's ``[server] optimizer`` is refused: m is the mean of the models by definition.
    Personal: yes. A new client (the cold-start model) starts from m.
    Head in the source: none (linear models); here shared by default: each client's own, held near their mean.
    Deviations: Omega is fixed, to the mean-regularised form (Evgeniou and Pontil, 2004). The paper's method (MOCHA)
    alternates between W and Omega by the dual of a convex loss, and a network's is not convex. FedRep's comparison
    prints neither Omega nor its strength. Its code, LG-FedAvg's, intends the Omega above but has a matrix of ones in
    place of I, and a strength below 1e-5. m is over the participants of the last round. Statistics (batch
    normalisation) are each client's own.
    Reference: Smith et al., Federated Multi-Task Learning, NIPS 2017, eq. (1).
    """

    traits = Traits(exact=False, needs_factors=False, personal=True, server="step")
    lam: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.lam < float("inf"):
            raise ValueError(f"lam must not be negative; got {self.lam}")

    def local_init(self, shared: Shared, client: Client) -> Params:
        return shared.params

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        models = self.adapt(shared, local, trainer)
        return trainer.upload(pick(models, TRAINED)), models

    def adapt(self, shared: Shared, local: Params, trainer: Trainer) -> Params:
        """The clients' models after local training near the mean in ``shared``."""
        objective = pulled(self.lam, pick(shared.params, ~buffer))
        return trainer.fit(local, train=TRAINED, objective=objective).params
