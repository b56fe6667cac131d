"""Server optimizers against a NumPy transcription of Reddi et al., Adaptive Federated Optimization, Algorithm 2."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rondo.algorithm import Client, Upload, weighted_mean
from rondo.algorithms.wrappers.server_optimizer import OptimState, ServerOptimizer, adagrad, adam, momentum, sgd, yogi
from rondo.params import Params, sub

Array = NDArray[np.float64]
LR, BETA1, BETA2, TAU = 0.05, 0.8, 0.95, 0.01
ADAPTIVE: dict[str, Callable[[], ServerOptimizer]] = {
    "adagrad": lambda: adagrad(LR, BETA1, TAU),
    "adam": lambda: adam(LR, BETA1, BETA2, TAU),
    "yogi": lambda: yogi(LR, BETA1, BETA2, TAU),
}
"""Made in the tests, not with the module: `make mutants` changes the code between the two."""
EVERY = {"sgd": lambda: sgd(0.7), "momentum": lambda: momentum(0.7, 0.6), **ADAPTIVE}


@pytest.fixture(params=EVERY)
def optimizer(request: pytest.FixtureRequest) -> ServerOptimizer:
    return EVERY[request.param]()


def reddi(kind: str, x: Array, deltas: list[Array]) -> list[Array]:
    """Algorithm 2 of the paper, from line 10 on: m starts at 0 and v at tau^2, without bias correction."""
    m, v, path = np.zeros_like(x), np.full_like(x, TAU**2), []
    for delta in deltas:
        m = BETA1 * m + (1 - BETA1) * delta
        if kind == "adagrad":
            v = v + delta**2
        elif kind == "yogi":
            v = v - (1 - BETA2) * delta**2 * np.sign(v - delta**2)
        else:
            v = BETA2 * v + (1 - BETA2) * delta**2
        x = x + LR * m / (np.sqrt(v) + TAU)
        path.append(x)
    return path


def tensors(seed: int, steps: int = 5) -> list[dict[str, torch.Tensor]]:
    g = torch.Generator().manual_seed(seed)
    shapes = {"layer.A": (2, 3), "head:out.bias": (4,)}
    return [{n: torch.randn(s, generator=g, dtype=torch.float64) for n, s in shapes.items()} for _ in range(steps)]


def walk(optimizer: ServerOptimizer, x: Params, deltas: list[dict[str, torch.Tensor]]) -> list[Params]:
    state, path = optimizer.init(x), []
    for delta in deltas:
        step, state = optimizer.update(delta, state)
        x = {n: t + step[n] for n, t in x.items()}
        path.append(x)
    return path


def close(actual: torch.Tensor, expected: Array | torch.Tensor) -> None:
    torch.testing.assert_close(actual, torch.as_tensor(expected), rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", ADAPTIVE)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**31))
def test_five_steps_equal_the_paper(kind: str, seed: int) -> None:
    x, *deltas = tensors(seed, 6)
    path = walk(ADAPTIVE[kind](), x, deltas)
    for name in x:
        expected = reddi(kind, x[name].numpy(), [d[name].numpy() for d in deltas])
        for params, value in zip(path, expected, strict=True):
            close(params[name], value)


def test_five_steps_of_momentum_equal_fedavgm() -> None:
    x, *deltas = tensors(0, 6)
    path, m = walk(momentum(0.7, 0.6), x, deltas), np.zeros(x["layer.A"].shape)
    value = x["layer.A"].numpy()
    for params, delta in zip(path, deltas, strict=True):
        m = 0.6 * m + delta["layer.A"].numpy()
        value = value + 0.7 * m
        close(params["layer.A"], value)


ONE = {"default": lambda: sgd(), "sgd": lambda: sgd(1.0), "momentum": lambda: momentum(beta1=0.0)}


@pytest.mark.parametrize("made", ONE.values(), ids=ONE)
def test_step_of_one_is_plain_averaging(made: Callable[[], ServerOptimizer]) -> None:
    optimizer = made()
    x, *uploaded = tensors(3, 4)
    mean = weighted_mean(Upload(Client(str(k), k + 1), p, k + 1.0) for k, p in enumerate(uploaded)).params
    (new,) = walk(optimizer, x, [sub(mean, x)])
    for name in x:
        close(new[name], mean[name])


def test_zero_pseudo_gradient_moves_nothing(optimizer: ServerOptimizer) -> None:
    (x,) = tensors(0, 1)
    still = [{n: torch.zeros_like(t) for n, t in x.items()}] * 3
    for new in walk(optimizer, x, still):
        torch.testing.assert_close(new, x, rtol=0, atol=0)


def test_idle_tensor_keeps_its_moments(optimizer: ServerOptimizer) -> None:
    """An idle tensor does not move either."""
    x, first, second, third = tensors(1, 4)
    state = optimizer.update(first, optimizer.init(x))[1]
    step, after = optimizer.update({"layer.A": second["layer.A"]}, state)
    assert step.keys() == {"layer.A"}
    for moments in ("first", "second"):
        kept, had = getattr(after, moments), getattr(state, moments)
        assert kept.keys() == had.keys()
        if had:
            assert torch.equal(kept["head:out.bias"], had["head:out.bias"])
    resumed, _ = optimizer.update(third, after)
    uninterrupted, _ = optimizer.update(third, state)
    assert torch.equal(resumed["head:out.bias"], uninterrupted["head:out.bias"])


def test_arguments_are_not_changed_in_place(optimizer: ServerOptimizer) -> None:
    x, first, second = tensors(2, 3)
    state = optimizer.update(first, optimizer.init(x))[1]
    held = copy.deepcopy((state, second))
    optimizer.update(second, state)
    for after, before in ((state.first, held[0].first), (state.second, held[0].second), (second, held[1])):
        torch.testing.assert_close(after, before, rtol=0, atol=0)


def test_moments_have_the_tensors_dtype_and_shape(optimizer: ServerOptimizer) -> None:
    x = {"layer.A": torch.zeros(2, 3, dtype=torch.float32)}
    step, state = optimizer.update({"layer.A": torch.ones(2, 3)}, optimizer.init(x))
    for tensor in (step["layer.A"], *state.first.values(), *state.second.values()):
        assert (tensor.dtype, tensor.shape) == (torch.float32, (2, 3))


def test_adaptive_moments_start_at_zero_and_tau_squared() -> None:
    make: list[Callable[..., ServerOptimizer]] = [adam, yogi, adagrad]
    for optimizer in make:
        state = optimizer(tau=0.1).init({"x": torch.ones(2, dtype=torch.float64)})
        assert state.first["x"].tolist() == [0, 0]
        close(state.second["x"], np.full(2, 0.01))


DEFAULTS: dict[Callable[..., ServerOptimizer], tuple[float, ...]] = {
    sgd: (1.0,),
    momentum: (1.0, 0.9),
    adam: (0.01, 0.9, 0.99, 1e-3),
    yogi: (0.01, 0.9, 0.99, 1e-3),
    adagrad: (0.01, 0.0, 1e-3),
}


@pytest.mark.parametrize("make", DEFAULTS)
def test_default_constants_stay_as_they_are(make: Callable[..., ServerOptimizer]) -> None:
    x, *deltas = tensors(4, 3)
    paths = (walk(optimizer, x, deltas) for optimizer in (make(), make(*DEFAULTS[make])))
    for params, expected in zip(*paths, strict=True):
        torch.testing.assert_close(params, expected, rtol=0, atol=0)


def test_sgd_has_no_moments() -> None:
    assert sgd().init({"x": torch.ones(2)}) == OptimState()
