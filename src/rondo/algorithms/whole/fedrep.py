from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final

from rondo.algorithm import Algorithm, Client, Fit, ServerState, Shared, Trainer, Uploads
from rondo.params import Params, Select, everything, head, pick
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FedRep(Algorithm[ServerState]):
    """A shared representation below personal heads, trained in turns: first the head, then the representation.

    Update, with p_k the participants' weights, summing to 1::

        client k:  h_k   <- tau_h epochs of local training of the head from h_k, phi frozen
                   phi_k <- tau_phi epochs of local training of the representation from phi, the new h_k frozen
        server:    phi <- sum_k p_k phi_k

    Symbols: phi, the paper's representation, is everything below the head, statistics and factors included; h_k is the
    head of client k. tau_h is ``head_epochs`` and tau_phi is ``body_epochs``, in place of ``train.local_epochs``. The
    paper's Algorithm 1 counts updates (``unit = "updates"``), its experiments count epochs: 10 of the head, then 1
    (CIFAR-10 with 100 clients) or 5 of the representation. Statistics move in the second phase.
    Uploads: phi; A and B, r (in + out) numbers per module. Down: the same.
    Exact: not applicable, because there is no global model.
    Linear: yes.
    Personal: yes. A new client (the cold-start model) has phi and the initial head. With ``model.head = "shared"``
    nothing is personal: the head is a part of phi, there is no head phase, and the method is FedAvg.
    Head in the source: trained and local; here local by default.
    Deviations: each phase has a fresh optimizer. In the official code one optimizer serves both; under the torch 0.4.1
    that it pins, momentum and weight decay go on moving the head in the second phase, since gradients there are zero
    and not None (torch 2 leaves the head alone). The paper weights clients equally, the official code by sample count
    in places; the run's ``weighting`` decides here.
    Reference: Collins et al., Exploiting Shared Representations for Personalized Federated Learning, ICML 2021.
    """

    traits = Traits(exact=False, needs_factors=False, personal=True, keeps=head, default_head="local")
    head_epochs: int = 10
    body_epochs: int = 1
    unit: Literal["epochs", "updates"] = "epochs"

    def __post_init__(self) -> None:
        if self.head_epochs < 0:
            raise ValueError(f"head_epochs is a number of {self.unit}, at least 0; got {self.head_epochs}")
        if self.body_epochs < 1:
            raise ValueError(f"body_epochs is a number of {self.unit}, at least 1; got {self.body_epochs}")
        if self.unit not in ("epochs", "updates"):
            raise ValueError(f'unit is "epochs" or "updates"; got {self.unit!r}')

    def local_init(self, shared: Shared, client: Client) -> Params:
        return pick(shared.params, head)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        params: Params = {**shared.params, **local}
        if local and self.head_epochs > 0:
            params = self._fit(trainer, params, head, self.head_epochs).params
        # Without a head of its own a client trains all that it sends.
        trained = ~head if local else everything
        params = self._fit(trainer, params, trained, self.body_epochs).params
        return trainer.upload(pick(params, lambda n: n not in local)), pick(params, local.__contains__)

    def _fit(self, trainer: Trainer, params: Params, train: Select, count: int) -> Fit:
        if self.unit == "updates":
            return trainer.fit(params, train=train, steps=count)
        return trainer.fit(params, train=train, epochs=count)
