"""FedLoRU's accumulation: factors are added to the base and start anew, alone or beside personal ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, BaseState, Mean, Round, Weight
from rondo.lowrank import LowRank
from rondo.params import Params, adapted_modules, cast_like, personal, pick

Restart = Literal["random", "momentum"]


@dataclass(frozen=True)
class Accumulating(Algorithm[BaseState]):
    """Each mean replaces the tensor it averages; after every ``tau`` rounds, scale * B A is added to the base.

    Then A and B restart. "random": both are drawn anew, their product zero. "momentum": both stay. Source: FedLoRU,
    Algorithm 1.
    """

    tau: int = 10
    restart: Restart = "random"

    def __post_init__(self) -> None:
        if self.tau < 1:
            raise ValueError(f"tau is a number of rounds, at least 1; got {self.tau}")
        if self.restart not in get_args(Restart):
            raise ValueError(f"restart is one of {', '.join(get_args(Restart))}; got {self.restart!r}")

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> BaseState:
        return BaseState.start(params, weights)

    def finish(self, state: BaseState, mean: Mean, round: Round) -> BaseState:
        new = {**state.params, **cast_like(mean.params, state.params)}
        if (round.index + 1) % self.tau != 0:
            return replace(state, params=new)
        chunks = {}
        for path in adapted_modules(state.params):
            a, b = new[f"{path}.A"], new[f"{path}.B"]
            chunks[path] = LowRank(state.scale[path] * b, a)
            if self.restart == "random":
                fresh_a, fresh_b = round.factors((b.shape[0], a.shape[1]), a.shape[0], "restart", path)
                new |= {f"{path}.A": fresh_a.to(a), f"{path}.B": fresh_b.to(b)}
        return replace(state, params=new).with_chunks(chunks)


def with_personal(params: Params, round: Round) -> dict[str, Tensor]:
    """``params`` and, for every module, a personal pair drawn anew: pA (r, in) and pB (out, r), their product zero."""
    pairs: dict[str, Tensor] = {}
    for path in adapted_modules(params):
        a, b = params[f"{path}.A"], params[f"{path}.B"]
        fresh_a, fresh_b = round.factors((b.shape[0], a.shape[1]), a.shape[0], "personal", path)
        pairs |= {f"{path}.pA": fresh_a.to(a), f"{path}.pB": fresh_b.to(b)}
    return {**params, **pairs}


def joined(params: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Both pairs as one: A (2r, in) and B (out, 2r), whose product is B A + pB pA. A client axis may lead."""
    seen = pick(params, ~personal)
    for path in adapted_modules(params):
        seen[f"{path}.A"] = torch.cat([params[f"{path}.A"], params[f"{path}.pA"]], -2)
        seen[f"{path}.B"] = torch.cat([params[f"{path}.B"], params[f"{path}.pB"]], -1)
    return seen
