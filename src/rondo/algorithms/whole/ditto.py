from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rondo.algorithm import Algorithm, Client, ServerState, Shared, Trainer, Uploads
from rondo.algorithms.parts.training import TRAINED, pulled, trained_uploads
from rondo.params import Params, buffer, pick
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class Ditto(Algorithm[ServerState]):
    """FedAvg, and beside it a personal model of each client that is held near the global one.

    Update, with w the server's tensors, v_k client k's own and p_k the participants' weights, summing to 1::

        client k:  w_k <- local training from w
                   v_k <- local training from v_k of  f_k(v) + lam / 2 |v - w|^2
        server:    w <- sum_k p_k w_k

    v_k starts at the w that client k receives first. It is held near the w that the client received in this round, and
    w_k does not depend on it.
    Symbols: the paper's lambda is ``lam``.
    Fields:
    - ``lam``: 0 trains v_k alone; v_k approaches w as it grows (with a learning rate below 2 / lam).
    - ``personal_epochs``: local epochs of v_k; 0 means as much local training as w_k has.
    Uploads: w_k, as FedAvg; r (in + out) numbers per module for factors. Down: w, the same.
    Exact: no, the model is the personal one. The global one is FedAvg's, bit for bit.
    Linear: yes.
    Personal: yes. A new client (the cold-start model) starts from w.
    Head in the source: a part of both models; here shared by default. A local head serves both models and is trained
    with each.
    Deviations: none from algorithm 1. Statistics (batch normalisation) of v_k are its own and not held near w's. The
    authors' code takes the steps of v_k and w_k in turns, on the same batches; here v_k has batches of its own, after
    w_k.
    Reference: Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021, algorithm 1.
    """

    traits = Traits(exact=False, needs_factors=False, personal=True)
    lam: float = 1.0
    personal_epochs: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.lam < float("inf"):
            raise ValueError(f"lam must not be negative; got {self.lam}")
        if self.personal_epochs < 0:
            raise ValueError(f"personal_epochs must not be negative; got {self.personal_epochs}")

    def local_init(self, shared: Shared, client: Client) -> Params:
        return shared.params

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        return trained_uploads(shared.params, trainer), self.adapt(shared, local, trainer)

    def adapt(self, shared: Shared, local: Params, trainer: Trainer) -> Params:
        """The personal models after local training near ``shared``."""
        objective = pulled(self.lam, pick(shared.params, ~buffer))
        return trainer.fit(local, train=TRAINED, objective=objective, epochs=self.personal_epochs or None).params
