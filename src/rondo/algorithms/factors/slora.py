from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Mean, Round, ServerState, Shared, Trainer, Uploads, Weight
from rondo.algorithms.parts.scales import Units, check_units, module_scales
from rondo.lowrank import LowRank, beside, top_factors
from rondo.params import Params, Role, adapted_modules, down, pick, role, sparse, up, whole
from rondo.traits import Traits


@final
@dataclass(frozen=True)
class SLoRA(Algorithm[ServerState]):
    """Some rounds of sparse fine-tuning first; FedIT then starts from the singular vectors of their result.

    Update, with p_k the participants' weights, summing to 1, and D zero except at positions common to all clients::

        stage 1, ``sparse_rounds`` rounds:  client k: S_k <- local training of the values of D at the positions
                                            server:   S <- sum_k p_k S_k;   delta W = scale * D(S)
                                            (units = "weight": delta W = D(S), and D / scale below)
        between:   D = U S V^T;   B = the first r columns of U S,   A = the first r rows of V^T
        stage 2:   FedIT on A and B

    The base stays W0; the part that truncation to rank r drops is lost.
    Fields: ``sparse_rounds``, the length of stage 1, and ``density``, the share of positions in a weight, drawn at
    random from the run's seed. ``units`` "weight": a step on S is the same step on W, as in sparse fine-tuning of W.
    "scale": it moves W by scale times as much with Adam and by scale^2 times with SGD.
    Uploads: density * in * out numbers per module in stage 1, r (in + out) after it. Down: the same (the positions
    once).
    Exact: no. Stage 1 is exact, but the step between truncates and stage 2 averages factors.
    Linear: yes.
    Personal: no.
    Head in the source: trained and averaged; here shared by default.
    Deviations: D is in units of the scale by default. Positions are sent once as numbers, not as a seed. The step
    between forms D, a matrix of the weight's size, one module at a time, because D is sparse without structure.
    Reference: Babakniya et al., SLoRA: Federated Parameter Efficient Fine-Tuning of Language Models, 2023.
    """

    traits = Traits(exact=False, server="other")
    sparse_rounds: int = 5
    density: float = 0.01
    units: Units = "scale"

    def __post_init__(self) -> None:
        if self.sparse_rounds < 0:
            raise ValueError(f"sparse_rounds must not be negative; got {self.sparse_rounds}")
        if not 0 < self.density <= 1:
            raise ValueError(f"density is a share of the positions, above 0 and at most 1; got {self.density}")
        check_units(self.units)

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerState:
        if self.sparse_rounds == 0:
            return ServerState(params)
        values = module_scales(params, weights) if self.units == "weight" else {}
        for path in adapted_modules(params):
            size = weights[path].shape[0] * weights[path].shape[1]
            indices = positions(max(1, int(self.density * size + 0.5)), size, round.generator("positions", path))
            values |= {f"{path}.I": indices, f"{path}.S": params[f"{path}.A"].new_zeros(len(indices))}
        return ServerState({**params, **values})

    def client_update(self, shared: Shared, local: Params, trainer: Trainer) -> tuple[Uploads, Params]:
        trained = (sparse if trainer.round.index < self.sparse_rounds else down | up) | whole
        fit = trainer.fit(shared.params, train=trained, objective=lambda p, loss: loss(_seen(p)))
        return trainer.upload(pick(fit.params, trained)), local

    def finish(self, state: ServerState, mean: Mean, round: Round) -> ServerState:
        new = super().finish(state, mean, round)
        if round.index + 1 != self.sparse_rounds:
            return new
        seen = _seen(new.params)
        factors: dict[str, Tensor] = {}
        for path in adapted_modules(new.params):
            like = LowRank(new.params[f"{path}.B"], new.params[f"{path}.A"])
            best = top_factors(LowRank(seen[f"{path}.B"], seen[f"{path}.A"]), like, balanced=False)
            factors |= {f"{path}.A": best.down, f"{path}.B": best.up}
        return replace(state, params={**pick(new.params, whole), **factors})

    def view(self, shared: Shared, local: Params) -> Params:
        return _seen({**shared.params, **local})


def positions(count: int, size: int, generator: torch.Generator) -> Tensor:
    """``count`` different positions out of ``size``, ascending."""
    return torch.randperm(size, generator=generator)[:count].sort().values.to(torch.int32)


def _seen(params: Params) -> dict[str, Tensor]:
    """D, in units of the scale, + B A as one A and B in modules with sparse values, the others unchanged. A client axis
    may lead."""
    seen = {n: t for n, t in params.items() if role(n) not in (Role.SPARSE, Role.INDEX, Role.FIXED)}
    for path in adapted_modules(params):
        if f"{path}.S" not in params:
            continue
        a, b, values, indices = (params[f"{path}.{part}"] for part in "ABSI")
        out, inp = b.shape[-2], a.shape[-1]
        flat = values.new_zeros(*values.shape[:-1], out * inp).scatter(-1, indices.long(), values)
        full = flat.reshape(*flat.shape[:-1], out, inp)
        if f"{path}.s" in params:
            full = full / params[f"{path}.s"]
        seen[f"{path}.A"], seen[f"{path}.B"] = beside(full, a, b)
    return seen
