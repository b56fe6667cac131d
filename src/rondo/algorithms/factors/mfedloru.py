from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

from torch import Tensor

from rondo.algorithm import BaseState, Client, Shared, Trainer, Upload, Uploads
from rondo.algorithms.parts.accumulation import Accumulating
from rondo.params import Params, adapted_modules, down, nested, pick, stack_clients, up, whole
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class MFedLoRU(Accumulating):
    """FedLoRU with rank budgets: a client of rank q changes A and B by nested factors of rank q.

    Update (Algorithm 3, eqs. 82, 83), with c = ``nested_scale`` and all nested factors drawn anew every round::

        client k:  A_k = A + c Au Ad,   B_k = B + c Bu Bd;   (Ad, Au, Bd, Bu) <- local training, A and B fixed
        server:    A <- sum_k p_k A_k        B <- sum_k p_k B_k;   added to the base every ``tau`` rounds, as fedloru

    Ad (q x in) and Bd (q x r) start as PEFT's A does, Au (r x q) and Bu (out x q) as its B (``init_lora_weights``), so
    A_k = A and B_k = B at first. A client without its own rank, or with the run's, trains A and B themselves, as in
    FedLoRU: the paper's "opts out", because nested factors have a rank below the run's (r_A, r_B < r). Where modules
    differ in rank, a client opts out in those that have no more than its own.
    Symbols: the paper's A and B as in ``fedloru``. Its A_d, A_u, B_d, B_u are Ad, Au, Bd, Bu transposed. Its alpha_A
    over r_A, and so for B, is c (1/2 in its experiments).
    Fields: ``tau`` and ``restart`` as in ``fedloru``; ``nested_scale``, c above.
    Uploads: the nested factors, q (in + r) + q (r + out) numbers per module, or r (in + out) from a client that opts
    out (the algorithm box sends the products, the text the factors). Down: as FedLoRU.
    Exact: no.
    Linear: yes, where clients have no ranks of their own.
    Personal: no.
    Head in the source: a part of the model, averaged; here shared by default.
    Deviations: one q for A and for B. p_k over the participants. See ``fedloru`` for the last merge.
    Reference: Park and Klabjan, 2024, appendix C.3.
    """

    traits = Traits(exact=False, client_ranks=True, server="restart")
    nested_scale: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.nested_scale < float("inf"):
            raise ValueError(f"nested_scale must be positive; got {self.nested_scale}")

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        rank = trainer.clients[0].rank  # the same for all clients of a cohort
        nesting = [p for p in adapted_modules(shared.params) if rank and rank < shared.params[f"{p}.A"].shape[-2]]
        fixed = {f"{path}.{part}": shared.params[f"{path}.{part}"] for path in nesting for part in "AB"}
        start = {n: t for n, t in shared.params.items() if n not in fixed}
        if rank and nesting:
            start |= stack_clients(_fresh(fixed, rank, c, trainer) for c in trainer.clients)
        trained = down | up | nested | whole
        fit = trainer.fit(start, train=trained, objective=lambda p, loss: loss(self._recovered({**fixed, **p})))
        return trainer.upload(pick(fit.params, trained)), local

    def expand(self, state: BaseState, upload: Upload) -> Upload:
        if not pick(upload.params, nested):
            return upload
        both = {**pick(state.params, down | up), **pick(upload.params, ~whole)}
        recovered = self._recovered({n: t.double() for n, t in both.items()})
        return replace(upload, params={**pick(upload.params, whole), **recovered})

    def view(self, shared: Shared, local: Params) -> Params:
        return self._recovered({**shared.params, **local})

    def _recovered(self, params: Params) -> dict[str, Tensor]:
        """A and B with their nested factors, if any, multiplied out. A client axis may lead."""
        seen = pick(params, ~nested)
        for name in pick(params, down | up):
            if f"{name}u" in params:
                seen[name] = params[name] + self.nested_scale * (params[f"{name}u"] @ params[f"{name}d"])
        return seen


def _fresh(params: Params, rank: int, client: Client, trainer: Trainer) -> dict[str, Tensor]:
    """One client's nested factors (no client axis) of every A and B in ``params``, which have a client axis. Their
    products are zero."""
    new: dict[str, Tensor] = {}
    for path in adapted_modules(params):
        for part in "AB":
            like = params[f"{path}.{part}"]
            d, u = trainer.round.factors((like.shape[-2], like.shape[-1]), rank, "nested", client.id, path, part)
            new |= {f"{path}.{part}d": d.to(like), f"{path}.{part}u": u.to(like)}
    return new
