from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rondo.algorithm import Algorithm, ServerState, Shared, Trainer, Uploads
from rondo.params import Params, pick, up, whole
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FFALoRA(Algorithm[ServerState]):
    """A is frozen at its random start, the same for all clients; only B is trained, sent and averaged.

    Update, with p_k the participants' weights, summing to 1::

        client k:  B_k <- local training of B, A fixed
        server:    B <- sum_k p_k B_k

    Symbols: A (r x in) and B (out x r) are PEFT's; A must not be zero at the start.
    Uploads: B, r out numbers per module. Down: the same; a client draws A itself.
    Exact: yes, for any weights and any subset of clients: sum_k p_k B_k A = (sum_k p_k B_k) A.
    Linear: yes.
    Personal: no.
    Head in the source: frozen, as LoRA-A2 reports; here shared by default.
    Deviations: A starts as PEFT initialises it, Kaiming-uniform. The paper's start is Gaussian (``init_lora_weights``).
    Reference: Sun et al., Improving LoRA in Privacy-preserving Federated Learning, ICLR 2024.
    """

    traits = Traits(exact=True)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        trained = up | whole
        fit = trainer.fit(shared.params, train=trained)
        return trainer.upload(pick(fit.params, trained)), local
