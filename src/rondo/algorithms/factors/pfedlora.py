from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, final, get_args

from torch import Tensor

from rondo.algorithm import Algorithm, Client, Round, ServerState, Shared, Trainer, Uploads, Weight
from rondo.algorithms.parts.accumulation import with_personal
from rondo.algorithms.parts.scales import Units, check_units, module_scales
from rondo.lowrank import beside
from rondo.params import Params, adapted_modules, dense, down, fixed, module_of, personal, pick, up, whole
from rondo.traits import Traits

Phases = Literal["separate", "together"]


@final
@dataclass(frozen=True)
class PFedLoRA(Algorithm[ServerState]):
    """A shared full-rank change beside a personal pair of factors: the baseline that pFedLoRU is compared with.

    Update (Algorithm 4), with L_k (out x r) and U_k (r x in) client k's own pair and D (out x in) shared::

        delta W_k = scale * (D + L_k U_k)                                            (units = "scale")
        delta W_k = D + scale * L_k U_k                                              (units = "weight")
        "separate" (pFedLoRA(1)):  (L_k, U_k) <- local training, D fixed;   then D_k <- local training, L_k, U_k fixed
        "together" (pFedLoRA(2)):  (D_k, L_k, U_k) <- local training of all
        server:    D <- sum_k p_k D_k

    Symbols: the paper's W is W0 and the change that D stands for; its L and U are pB and pA here.
    Fields:
    - ``phases``: "separate" takes two phases, each as long as the run's local training, "together" one: for a fair
      comparison, give the second twice the epochs.
    - ``units`` "weight": a step on D is the same step on W, the paper's variable. "scale": a step on D moves W by scale
      times as much with Adam and by scale^2 times with SGD.
    Uploads: D, in * out numbers per module, however small the rank: the method is a comparison, not low-rank
    communication. Down: the same. An export has rank min(in, out) + r.
    Exact: no.
    Linear: yes.
    Personal: yes. A new client (the cold-start model) has a personal pair whose product is 0.
    Head in the source: a part of the model, averaged; here shared by default, trained with D.
    Deviations: only adapted layers move. D is in units of the scale by default. p_k over the participants. With
    ``adapter.from_scratch`` W starts at the product of the first factors, a random matrix of rank r.
    Reference: Park and Klabjan, 2024, appendix C.4, after Yi et al., pFedLoRA, 2023.
    """

    traits = Traits(exact=False, personal=True)
    phases: Phases = "separate"
    units: Units = "scale"

    def __post_init__(self) -> None:
        if self.phases not in get_args(Phases):
            raise ValueError(f"phases is one of {', '.join(get_args(Phases))}; got {self.phases!r}")
        check_units(self.units)

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerState:
        # D starts from the adapter that the run starts from, if any.
        full = {f"{p}.D": params[f"{p}.B"] @ params[f"{p}.A"] for p in adapted_modules(params)}
        if self.units == "weight":
            scales = module_scales(params, weights)
            full = {n: d * scales[f"{module_of(n)}.s"] for n, d in full.items()} | scales
        return ServerState({**full, **pick(with_personal(params, round), ~(down | up))})

    def local_init(self, shared: Shared, client: Client) -> Params:
        return pick(shared.params, personal)

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        params: Params = {**shared.params, **local}
        phases = (personal, dense | whole) if self.phases == "separate" else (personal | dense | whole,)
        for trained in phases:
            params = trainer.fit(params, train=trained, objective=lambda p, loss: loss(_seen(p))).params
        return trainer.upload(pick(params, dense | whole)), pick(params, personal)

    def view(self, shared: Shared, local: Params) -> Params:
        return _seen({**shared.params, **local})


def _seen(params: Params) -> dict[str, Tensor]:
    """D, in units of the scale, + pB pA as one A and B. A client axis may lead."""
    seen = pick(params, ~(dense | personal | fixed))
    for path in adapted_modules(params):
        full, a, b = (params[f"{path}.{part}"] for part in ("D", "pA", "pB"))
        if f"{path}.s" in params:
            full = full / params[f"{path}.s"]
        seen[f"{path}.A"], seen[f"{path}.B"] = beside(full, a, b)
    return seen
