"""Server optimizers as pure ``(init, update)`` pairs on the pseudo-gradient (Reddi et al., Adaptive Federated
Optimization, Algorithm 2; no bias correction, as there).

The pseudo-gradient is ``D = mean(upload) - x``, the direction to move in; ``x_new = x + update``. Only tensors
present in ``D`` move, so a factor that idles in a round keeps its moments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rondo.params import Params


@dataclass(frozen=True)
class OptimState:
    """First and second moments by tensor name; empty where the optimizer has none."""

    first: Mapping[str, Tensor] = field(default_factory=dict)
    second: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerOptimizer:
    """``init(params)`` gives a state; ``update(delta, state)`` gives the step to add and the next state."""

    init: Callable[[Params], OptimState]
    update: Callable[[Params, OptimState], tuple[Params, OptimState]]


def sgd(lr: float = 1.0) -> ServerOptimizer:
    """``step = lr D``. With ``lr = 1`` it is plain averaging."""

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
"""By the names that a configuration gives them."""
