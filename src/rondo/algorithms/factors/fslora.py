from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rondo.algorithm import Algorithm, ServerState, Shared, Trainer, Upload, Uploads
from rondo.algorithms.parts.slots import drawn, filled
from rondo.algorithms.parts.training import TRAINED, trained_uploads
from rondo.params import Params, module_of, pick, up
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FSLoRA(Algorithm[ServerState]):
    """FedIT whose clients each train a random part of the ranks, drawn in every round.

    Update, with p_k the participants' weights and r_k the rank of client k; a slot is a row of A and the same column of
    B::

        client k:  I_k <- r_k of the r slots of each module, drawn at random;   S_k = r / r_k on I_k and 0 elsewhere
                   (A_k, B_k) <- local training of A and B under W0 + scale * B S_k A, which moves the slots I_k alone
        server:    A <- sum_k p_k A_k        B <- sum_k p_k B_k

    The mean of S_k over the draws is I, so the clients together train the whole product. A client holds and trains
    factors of rank r_k. A client without its own rank trains all slots; the method is then FedIT.
    Symbols: A (r x in) and B (out x r) are PEFT's; S_k is the paper's sketching matrix.
    Uploads: the drawn rows, columns and their numbers: r_k (in + out + 1) numbers per module. Down: A and B.
    Exact: no. The mean of products differs from the product of means, and the clients train under sketches.
    Linear: yes, where clients have no ranks of their own.
    Personal: no.
    Head in the source: not known; here shared by default, and trained by every client.
    Deviations: clients draw their slots themselves, from the run's named streams, and get all of A and B, so their
    scores are of the global model; the source's server draws them and sends these alone. The mean is weighted by the
    run's ``weighting``. The authors' code, read at ac24177 and not run, compares whole names with "lora_A" and
    "lora_B", so on a model of PEFT it would draw nothing; this is the rule that it means.
    Reference: Fang et al., Federated Sketching LoRA: A Flexible Framework for Heterogeneous Collaborative Fine-Tuning
    of Large Language Models, ICML 2026 (arXiv 2501.19389).
    """

    traits = Traits(exact=False, client_ranks=True, form="chosen")

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        start, rank = shared.params, trainer.clients[0].rank  # the same for all clients of a cohort
        if rank is None:
            return trained_uploads(start, trainer), local
        own, slots = drawn(start, trainer, rank)
        ratios = {f"{module_of(n)}.B": start[f"{module_of(n)}.A"].shape[-2] / t.shape[-1] for n, t in slots.items()}
        fit = trainer.fit(
            own,
            train=TRAINED,
            objective=lambda p, loss: loss({n: ratios[n] * t if up(n) else t for n, t in p.items()}),
        )
        return trainer.upload({**pick(fit.params, TRAINED), **slots}), local

    def expand(self, state: ServerState, upload: Upload) -> Upload:
        return filled(state.params, upload)
