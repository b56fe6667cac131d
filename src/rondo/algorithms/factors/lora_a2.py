from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, ServerState, Shared, Trainer, Upload, Uploads
from rondo.algorithms.parts.slots import filled
from rondo.params import Params, Select, adapted_modules, down, module_of, pick, up, whole
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class LoRAA2(Algorithm[ServerState]):
    """The factors take turns, and a client trains and sends only the slots that matter most to it.

    Update, with t the round; a slot is a row of A and the same column of B; r_k is the rank of client k, M the number
    of adapted modules::

        t even (B active; t odd: A, with the letters swapped):
        client k:  dB <- one epoch of B;   score of slot i of a module: |dB[:, i]| |A[i, :]|
                   keep the r_k M best slots of all modules;   B_k <- local training of their columns of B
        server:    B <- sum_k p_k B_k, where a column that client k did not keep is the server's

    B goes first, as in RoLoRA, because with B = 0 the gradient of A is zero. A client without its own rank keeps all
    slots and selects nothing; the method is then RoLoRA with a learning rate for each factor. All slots have the run's
    scale, whatever the client's rank: the source's factors have one rank, r_G.
    Fields: ``lr_ratio`` is B's learning rate over A's. A is trained at the run's rate, B at ``lr_ratio`` times that
    (sections 4.1 and 5.4, appendix B: five times); so is a trained head in B's rounds.
    Uploads: the kept columns (or rows) and their numbers: over all modules r_k M slots of out + 1 (in + 1) numbers.
    Down: the factor just averaged, r out or r in; both for a client that missed rounds.
    Exact: yes, the other factor is shared.
    Linear: yes, where clients have no ranks of their own.
    Personal: no.
    Head in the source: frozen; here frozen by default. If a head is trained, it is trained and sent in every round, and
    trained in the probing epoch too.
    Deviations: p_k over the participants (the source: over all clients). The probing epoch comes on top of the run's
    local training. A score leaves out its module's scale, as in the source, where all modules have the same.
    Reference: Koo et al., Towards Robust and Efficient Federated Low-Rank Adaptation with Heterogeneous Clients, ACL
    2025 (arXiv 2410.22815): eqs. (4) to (6), algorithms 1 and 2.
    """

    traits = Traits(exact=True, client_ranks=True, default_head="frozen", form="chosen")
    lr_ratio: float = 5.0

    def __post_init__(self) -> None:
        if not 0 < self.lr_ratio < math.inf:
            raise ValueError(f"lr_ratio is B's learning rate over A's, a positive number; got {self.lr_ratio}")

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        active, start = up if trainer.round.index % 2 == 0 else down, shared.params
        rank = trainer.clients[0].rank  # the same for all clients of a cohort
        lr = trainer.lr * (self.lr_ratio if active is up else 1.0)
        if rank is None:
            fit = trainer.fit(start, train=active | whole, lr=lr)
            return trainer.upload(pick(fit.params, active | whole)), local
        probe = trainer.fit(start, train=active | whole, epochs=1, lr=lr)
        kept = _best(start, probe.params, active, rank)

        def masked(params: Params) -> dict[str, Tensor]:
            """``params`` with dropped slots at their start values, so no gradient and no decay reaches them."""
            return {n: torch.where(kept[n], t, start[n]) if n in kept else t for n, t in params.items()}

        fit = trainer.fit(start, train=active | whole, objective=lambda p, loss: loss(masked(p)), lr=lr)
        uploads = trainer.upload(pick(masked(fit.params), active | whole))
        masks = [{n: m[k].flatten() for n, m in kept.items()} for k in range(len(uploads))]
        return tuple(_packed(u, m) for u, m in zip(uploads, masks, strict=True)), local

    def expand(self, state: ServerState, upload: Upload) -> Upload:
        return filled(state.params, upload)


def _best(start: Params, probe: Params, active: Select, rank: int) -> dict[str, Tensor]:
    """Masks of the slots that each client keeps, by active factor: (K, 1, r) for B, (K, r, 1) for A."""
    paths = adapted_modules(start)
    part, other, axis, along = ("B", "A", -2, -1) if active is up else ("A", "B", -1, -2)
    moved = [(probe[f"{p}.{part}"] - start[f"{p}.{part}"]).norm(dim=axis) for p in paths]
    scores = [m * start[f"{p}.{other}"].norm(dim=along) for m, p in zip(moved, paths, strict=True)]
    flat = torch.cat(scores, -1)
    # Stable: ties are broken by position on every machine.
    order = flat.sort(dim=-1, descending=True, stable=True).indices[:, : rank * len(paths)]
    mask = torch.zeros_like(flat, dtype=torch.bool).scatter(-1, order, True)
    parts = torch.split(mask, [s.shape[-1] for s in scores], -1)
    return {f"{p}.{part}": m.unsqueeze(axis) for p, m in zip(paths, parts, strict=True)}


def _packed(upload: Upload, masks: Mapping[str, Tensor]) -> Upload:
    """``upload`` with only the kept slots, and their numbers."""
    params = dict(upload.params)
    for name, mask in masks.items():
        slots = mask.nonzero().flatten().cpu()
        params[name] = params[name].index_select(1 if up(name) else 0, slots.to(params[name].device))
        params[f"{module_of(name)}.I"] = slots.to(torch.int32)
    return replace(upload, params=params)
