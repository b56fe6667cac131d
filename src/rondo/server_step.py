"""A server optimizer (FedAvgM, FedAdam, FedYogi, FedAdagrad) around any linear algorithm.

The mean of the uploads becomes a direction to move in, ``D = mean - x``, x being the server's values of what was
uploaded, a shared head's as any other; the optimizer makes a step of it, and the algorithm finishes the round as if
``x + step`` were the mean. Source: Reddi et al., Adaptive Federated Optimization, 2021, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

from torch import Tensor

from rondo.algorithm import Client, Mean, Round, Shared, Upload, Weight
from rondo.params import Params, sub
from rondo.server_optim import OptimState, ServerOptimizer
from rondo.wrapper import Wrapper


@dataclass(frozen=True)
class ServerStepState:
    """The wrapped algorithm's state and the optimizer's, in float64."""

    inner: Any
    moments: OptimState

    @property
    def params(self) -> Params:
        params: Params = self.inner.params
        return params


@final
@dataclass(frozen=True)
class ServerStep(Wrapper[ServerStepState]):
    """``algorithm``, which must be linear and have ``same_coordinates``, with ``optimizer`` on its server.

    It stays linear: uploads are folded as they come. It is not exact, whatever ``algorithm`` is. A tensor that nobody
    uploads in a round keeps its moments. One whose next value the algorithm makes something else than x + step loses
    them: FedLoRU's factors after a random restart are new ones, to which old directions mean nothing.
    """

    optimizer: ServerOptimizer
    exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (self.algorithm.linear and self.algorithm.same_coordinates):
            raise ValueError("a server optimizer needs a linear algorithm with same_coordinates")

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerStepState:
        return ServerStepState(self.algorithm.init(params, weights, round), OptimState())

    def broadcast(self, state: ServerStepState, client: Client, round: Round) -> Shared:
        return self.algorithm.broadcast(state.inner, client, round)

    def expand(self, state: ServerStepState, upload: Upload) -> Upload:
        return self.algorithm.expand(state.inner, upload)

    def finish(self, state: ServerStepState, mean: Mean, round: Round) -> ServerStepState:
        before: Params = state.params
        x = {n: before[n].double() for n in mean.params}
        # A tensor that has no moments, or has lost them, starts with the optimizer's own.
        fresh, kept = self.optimizer.init(x), state.moments
        moments = OptimState({**fresh.first, **kept.first}, {**fresh.second, **kept.second})
        step, moments = self.optimizer.update(sub(mean.params, x), moments)
        stepped = {n: t + step[n] for n, t in x.items()}
        inner = self.algorithm.finish(state.inner, replace(mean, params=stepped), round)
        after, expected = inner.params, {**before, **stepped}
        as_expected = {n for n, t in after.items() if n in expected and t.equal(expected[n].to(t.dtype))}
        return ServerStepState(inner, OptimState(*(_only(m, as_expected) for m in (moments.first, moments.second))))


def _only(params: Mapping[str, Tensor], names: set[str]) -> dict[str, Tensor]:
    return {n: t for n, t in params.items() if n in names}
