"""Server optimizers (FedAvgM, FedAdam, FedYogi, FedAdagrad), and a wrapper that puts one around a linear algorithm.

The first half of the module is pure: a :class:`ServerOptimizer` is a pair of functions on tensors and an
:class:`OptimState`, and knows nothing of algorithms.

The second half, :class:`ServerStep`, puts it on an algorithm's server. The mean of the uploads becomes a direction
``D = mean - x``, where x are the server's values of the uploaded tensors, a shared head included. The optimizer turns D
into a step, and the algorithm finishes the round as if ``x + step`` were the mean.

Source: Reddi et al., Adaptive Federated Optimization, 2021, Algorithm 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import final

import torch
from torch import Tensor

from rondo.algorithm import Mean, Round, Weight
from rondo.algorithms.wrappers.wrapper import InnerState, StateWrapper
from rondo.params import Params, buffer, pick, sub
from rondo.traits import Traits


@dataclass(frozen=True)
class OptimState:
    """First and second moments by tensor name; empty if the optimizer has none."""

    first: Mapping[str, Tensor] = field(default_factory=dict)
    second: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerOptimizer:
    """A pair of pure functions."""

    init: Callable[[Params], OptimState]
    """``init(params)`` gives the first state."""
    update: Callable[[Params, OptimState], tuple[Params, OptimState]]
    """``update(delta, state)`` gives the step to add and the next state."""


def sgd(lr: float = 1.0) -> ServerOptimizer:
    """``step = lr D``. With ``lr = 1`` this is plain averaging."""

    def update(delta: Params, state: OptimState) -> tuple[Params, OptimState]:
        return {n: lr * d for n, d in delta.items()}, state

    return ServerOptimizer(lambda params: OptimState(), update)


def momentum(lr: float = 1.0, beta1: float = 0.9) -> ServerOptimizer:
    """FedAvgM: ``m = beta1 m + D; step = lr m`` (Hsu et al. 2019)."""

    def update(delta: Params, state: OptimState) -> tuple[Params, OptimState]:
        m = {n: beta1 * state.first[n] + d for n, d in delta.items()}
        return {n: lr * m[n] for n in delta}, OptimState({**state.first, **m})

    return ServerOptimizer(lambda params: OptimState(_full(params, 0.0)), update)


def adam(lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> ServerOptimizer:
    """FedAdam: ``v = beta2 v + (1 - beta2) D^2``."""
    return _adaptive(lr, beta1, tau, lambda v, d2: beta2 * v + (1 - beta2) * d2)


def yogi(lr: float = 0.01, beta1: float = 0.9, beta2: float = 0.99, tau: float = 1e-3) -> ServerOptimizer:
    """FedYogi: ``v = v - (1 - beta2) D^2 sign(v - D^2)``."""
    return _adaptive(lr, beta1, tau, lambda v, d2: v - (1 - beta2) * d2 * torch.sign(v - d2))


def adagrad(lr: float = 0.01, beta1: float = 0.0, tau: float = 1e-3) -> ServerOptimizer:
    """FedAdagrad: ``v = v + D^2``."""
    return _adaptive(lr, beta1, tau, lambda v, d2: v + d2)


def _adaptive(lr: float, beta1: float, tau: float, second: Callable[[Tensor, Tensor], Tensor]) -> ServerOptimizer:
    """``m = beta1 m + (1 - beta1) D; v = second(v, D^2); step = lr m / (sqrt(v) + tau)``; v starts at tau^2."""

    def update(delta: Params, state: OptimState) -> tuple[Params, OptimState]:
        m = {n: beta1 * state.first[n] + (1 - beta1) * d for n, d in delta.items()}
        v = {n: second(state.second[n], d.square()) for n, d in delta.items()}
        step = {n: lr * m[n] / (v[n].sqrt() + tau) for n in delta}
        return step, OptimState({**state.first, **m}, {**state.second, **v})

    return ServerOptimizer(lambda params: OptimState(_full(params, 0.0), _full(params, tau**2)), update)


def _full(params: Params, value: float) -> dict[str, Tensor]:
    return {name: torch.full_like(tensor, value) for name, tensor in params.items()}


OPTIMIZERS: Mapping[str, Callable[..., ServerOptimizer]] = {
    "sgd": sgd,
    "momentum": momentum,
    "adam": adam,
    "yogi": yogi,
    "adagrad": adagrad,
}
"""The optimizers by their names in the configuration."""


@dataclass(frozen=True)
class ServerStepState(InnerState):
    """The wrapped algorithm's state, and the optimizer's in float64."""

    moments: OptimState


@final
@dataclass(frozen=True)
class ServerStep(StateWrapper[ServerStepState]):
    """``algorithm`` with ``optimizer`` on its server. It must be linear, with "mean" or "restart" as
    :attr:`rondo.traits.Traits.server`.

    The wrapper stays linear: uploads are folded as they arrive. It is never exact, whatever ``algorithm`` is. A tensor
    that no client uploads in a round keeps its moments. A tensor whose next value is not x + step loses them: FedLoRU's
    factors after a random restart are new ones, and old directions mean nothing to them. Raises ValueError for an
    algorithm that does not qualify.
    """

    optimizer: ServerOptimizer

    def __post_init__(self) -> None:
        if not self.algorithm.linear or self.algorithm.traits.server not in ("mean", "restart"):
            raise ValueError('a server optimizer needs a linear algorithm whose server is "mean" or "restart"')

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        return replace(self.algorithm.traits, exact=False)

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> ServerStepState:
        return ServerStepState(self.algorithm.init(params, weights, round), OptimState())

    def finish(self, state: ServerStepState, mean: Mean, round: Round) -> ServerStepState:
        before: Params = state.params
        x = {n: before[n].double() for n in pick(mean.params, ~buffer)}
        # A tensor without moments, new or after losing them, starts with the optimizer's initial ones.
        fresh, kept = self.optimizer.init(x), state.moments
        moments = OptimState({**fresh.first, **kept.first}, {**fresh.second, **kept.second})
        step, moments = self.optimizer.update(sub(pick(mean.params, ~buffer), x), moments)
        stepped = {**mean.params, **{n: t + step[n] for n, t in x.items()}}  # statistics are averaged
        inner = self.algorithm.finish(state.inner, replace(mean, params=stepped), round)
        after, expected = inner.params, {**before, **stepped}
        as_expected = {n for n, t in after.items() if n in expected and t.equal(expected[n].to(t.dtype))}
        both = (pick(m, lambda name: name in as_expected) for m in (moments.first, moments.second))
        return ServerStepState(inner, OptimState(*both))
