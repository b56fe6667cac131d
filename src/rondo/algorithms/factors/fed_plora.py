from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import torch

from rondo.algorithm import Algorithm, Mean, Round, ServerState, Shared, Trainer, Upload, Uploads
from rondo.algorithms.parts.slots import drawn, filled, placed
from rondo.algorithms.parts.training import TRAINED, trained_uploads
from rondo.params import AUXILIARY_PREFIX, Params, Role, auxiliary, module_of, pick, role
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FedPLoRA(Algorithm[ServerState]):
    """FedIT whose clients each train a few of the rank-one parts of B A, drawn in every round, over all the others.

    Update, with p_k the participants' weights and r_k the rank of client k; a slot j is a column b_j of B and the row
    a_j of A::

        client k:  I_k <- r_k of the r slots of each module, drawn at random
                   (b_j, a_j) for j in I_k <- local training under W0 + scale * B A, all other slots fixed
        server:    b_j <- sum_{k: j in I_k} q_kj b_kj,  a_j likewise,   q_kj = p_k / sum_{i: j in I_i} p_i

    So a client starts from the server's model, whatever its rank. Slots that nobody drew stay. A client without its
    own rank trains all slots; the method is then FedIT.
    Symbols: A (r x in) and B (out x r) are PEFT's; a_j and b_j are the paper's A_(j) and B_(j).
    Uploads: the drawn rows, columns and their numbers: r_k (in + out + 1) numbers per module. Down: A and B.
    Exact: no. The mean of products differs from the product of means.
    Linear: yes, where clients have no ranks of their own.
    Personal: no.
    Head in the source: not known; here shared by default, and trained by every client.
    Deviations: the paper folds the other slots into the client's frozen weight. Here they stand beside its own as
    fixed factors, which is the same model and leaves the weight as it is. Clients draw their slots themselves, from the
    run's named streams. The mean is weighted by the run's ``weighting``; the paper's has equal weights. The full
    text and the authors' code were not at hand: read were the abstract, reviews and a note of the rules. In a run
    either all clients have ranks of their own or none has.
    Reference: Zhang et al., Heterogeneous Federated Fine-Tuning with Parallel One-Rank Adaptation, ICLR 2026
    (arXiv 2602.16936).
    """

    traits = Traits(exact=False, client_ranks=True, form="chosen", server="step")

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        start, rank = shared.params, trainer.clients[0].rank  # the same for all clients of a cohort
        if rank is None:
            return trained_uploads(start, trainer), local
        own, slots = drawn(start, trainer, rank)
        fit = trainer.fit(own, train=TRAINED, objective=lambda p, loss: loss(placed(p, slots, start)))
        return trainer.upload({**pick(fit.params, TRAINED), **slots}), local

    def expand(self, state: ServerState, upload: Upload) -> Upload:
        """The server's factors with the client's slots in place, and which they are: 1 or 0 by slot."""
        whole, drew = filled(state.params, upload), {}
        for name in (n for n in upload.params if role(n) is Role.INDEX):
            none = torch.zeros(state.params[f"{module_of(name)}.A"].shape[0], dtype=torch.float64)
            slots = upload.params[name].long()
            drew[f"{AUXILIARY_PREFIX}{module_of(name)}.drew"] = none.to(slots.device).index_fill(0, slots, 1.0)
        return replace(whole, params={**whole.params, **drew})

    def finish(self, state: ServerState, mean: Mean, round: Round) -> ServerState:
        new = pick(mean.params, ~auxiliary)
        for name, share in pick(mean.params, auxiliary).items():
            path = module_of(name.removeprefix(AUXILIARY_PREFIX))
            for letter, axis in (("A", 1), ("B", 0)):
                old = state.params[f"{path}.{letter}"].double()
                # Of the mean, a share 1 - ``share`` is the server's own, from the clients that did not draw the slot.
                moved = (new[f"{path}.{letter}"] - old) / share.unsqueeze(axis)
                new[f"{path}.{letter}"] = old + torch.where(share.unsqueeze(axis) > 0, moved, 0.0)
        return super().finish(state, replace(mean, params=new), round)
