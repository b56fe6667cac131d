from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from rondo.algorithm import BaseState, Client, Round, Shared, Trainer, Uploads, Weight
from rondo.algorithms.parts.accumulation import Accumulating, joined, with_personal
from rondo.algorithms.parts.training import TRAINED
from rondo.params import Params, personal, pick
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class PFedLoRU(Accumulating):
    """FedLoRU beside a personal pair of factors that never leaves its client.

    Update (Algorithm 2), with L_k (out x r) and U_k (r x in) client k's own pair::

        delta W_k = change of the base + scale * (B A + L_k U_k)
        client k:  (L_k, U_k) <- local training, A and B fixed;   then (A_k, B_k) <- local training, L_k and U_k fixed
        server:    as FedLoRU: means of A and B, added to the base every ``tau`` rounds

    Each phase is as long as the run's local training, so the work is twice FedIT's.
    Symbols: the paper's A and B as in ``fedloru``; its L and U are pB and pA here.
    Fields: ``tau`` and ``restart`` as in ``fedloru``.
    Uploads: A and B, r (in + out) numbers per module. Down: as FedLoRU (the common start of the personal pair once).
    Exact: no.
    Linear: yes.
    Personal: yes. A new client (the cold-start model) has a personal pair whose product is 0.
    Head in the source: a part of the model, averaged; here shared by default and trained in the second phase.
    Deviations: one scale and one rank for both pairs (the paper: two scales, and in its experiments a smaller personal
    rank). p_k over the participants.
    Reference: Park and Klabjan, 2024, appendix C.2.
    """

    traits = Traits(exact=False, personal=True, server="restart")

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> BaseState:
        return BaseState.start(with_personal(params, round), weights)

    def local_init(self, shared: Shared, client: Client) -> Params:
        return pick(shared.params, personal)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        personal_fit = trainer.fit(
            {**shared.params, **local}, train=personal, objective=lambda p, loss: loss(joined(p))
        )
        fit = trainer.fit(personal_fit.params, train=TRAINED, objective=lambda p, loss: loss(joined(p)))
        return trainer.upload(pick(fit.params, TRAINED)), pick(fit.params, personal)

    def view(self, shared: Shared, local: Params) -> Params:
        return joined({**shared.params, **local})
