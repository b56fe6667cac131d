"""An algorithm of one's own, complete. Check it against the public laws: rondo check own_algorithm:FairAverage"""

from dataclasses import dataclass
from typing import final

import torch

from rondo.algorithm import Algorithm, ServerState, Shared, Trainer, Traits, Uploads
from rondo.params import Params, down, pick, up, whole


@final
@dataclass(frozen=True)
class FairAverage(Algorithm[ServerState]):
    """FedAvg of LoRA in which clients with a larger loss count more, so that no client falls behind.

    Client k trains A, B and the head from the received ones. The server takes their mean with weights n_k F_k^q, where
    n_k is the client's number of examples and F_k its mean training loss; q = 0 is FedAvg. After Li et al., Fair
    Resource Allocation in Federated Learning, 2020, but with a weighted mean in place of their step.
    """

    traits = Traits(exact=False)  # the mean of the factors is not the factors of the mean
    q: float = 1.0

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        """One round of a client, or of many at once: every tensor has a leading client axis."""
        trained = down | up | whole
        fit = trainer.fit(shared.params, train=trained)
        examples = torch.tensor([client.num_examples for client in trainer.clients])
        weight = examples * fit.loss.clamp(min=1e-6) ** self.q  # shape (clients,), above zero
        return trainer.upload(pick(fit.params, trained), weight), local
