from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torch import Tensor

from rondo.algorithm import Algorithm, Round, ServerState, Shared, Trainer, Uploads, Weight
from rondo.algorithms.parts.bases import bases, without_cores
from rondo.params import Params, adapted_modules, core, down, module_of, pick, up, whole
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class FedSB(Algorithm[ServerState]):
    """B and A are frozen; only the r x r matrix between them is trained, sent and averaged.

    Update (section 3), with p_k the participants' weights, summing to 1::

        delta W = scale * L C R
        client k:  C_k <- local training of C, L and R fixed
        server:    C <- sum_k p_k C_k

    Start: L has orthonormal columns and R orthonormal rows, drawn from the run's seed, and C = 0. An adapter to start
    from (``adapter.start_from``, trained on public rows for instance) gives both instead: B A = L C R is its singular
    value decomposition, the largest entry of each row of R positive.
    Symbols: the paper's B, R and A are L (out x r), C (r x r) and R (r x in) here. The network applies (L C)(R x).
    Uploads: r^2 numbers per module. Down: the same; a client makes L and R itself.
    Exact: yes, for any weights and any subset of clients: sum_k p_k L C_k R = L (sum_k p_k C_k) R.
    Linear: yes.
    Personal: no.
    Head in the source: not stated; here shared by default.
    Deviations: the paper takes L, C and R from the SVD of a first gradient of full fine-tuning, over rows of the
    clients. That gradient would tell the server of them, so here it takes an adapter, or chance.
    Reference: Singhal et al., Fed-SB: A Silver Bullet for Extreme Communication Efficiency and Performance in (Private)
    Federated LoRA Fine-Tuning, 2025.
    """

    traits = Traits(exact=True)

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerState:
        start = pick(params, ~(down | up))
        for path in adapted_modules(params):
            a, b = params[f"{path}.A"], params[f"{path}.B"]
            tensors = bases(b, a, round.generator("bases", path))
            start |= {f"{path}.{letter}": t.to(a.dtype) for letter, t in zip("LCR", tensors, strict=True)}
        return ServerState(start)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        trained = core | whole
        fit = trainer.fit(shared.params, train=trained, objective=lambda p, loss: loss(_seen(p)))
        return trainer.upload(pick(fit.params, trained)), local

    def view(self, shared: Shared, local: Params) -> Params:
        return _seen(shared.params)


def _seen(params: Params) -> dict[str, Tensor]:
    """A = R and B = L C of every module; other tensors stay as they are."""
    seen = without_cores(params)
    for name in pick(params, core):
        path = module_of(name)
        seen |= {f"{path}.A": params[f"{path}.R"], f"{path}.B": params[f"{path}.L"] @ params[name]}
    return seen
