"""A server optimizer around every algorithm that allows one; the others refuse it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from rondo import algorithms
from rondo.algorithm import Algorithm, Mean, Round, ServerState, Traits, weighted_mean
from rondo.algorithms.factors.fedloru import FedLoRU
from rondo.algorithms.factors.rolora import RoLoRA
from rondo.algorithms.wrappers.local import Local
from rondo.algorithms.wrappers.server_optimizer import (
    OPTIMIZERS,
    OptimState,
    ServerStep,
    ServerStepState,
    adam,
    momentum,
    sgd,
)
from rondo.engine.wire import serialization
from rondo.params import Params, head, pick
from rondo.testing.laws import LAWS
from rondo.testing.run import Run

MADE = {n: algorithms.get(n) for n in algorithms.names()}
ALLOWED = {n: a for n, a in MADE.items() if a.linear and a.traits.server in ("mean", "restart")}
REFUSED = {n: a for n, a in MADE.items() if n not in ALLOWED}

NEEDS = 'a server optimizer needs a linear algorithm whose server is "mean" or "restart"'
QUALIFIES = {"linear": True, "traits": Traits(exact=True)}

MOVES_BY_ITSELF = ("consensus", "zero steps", "exactness", "whole tensors")
"""Laws of plain averaging, which a step of another size or with memory breaks on purpose."""


DIFFERENT = ("rolora", "fedsa-lora", "hetlora", "fedloru", "fedavg")
"""Turns, personal factors, norms as weights, merges, whole models."""


@pytest.mark.parametrize("law", [n for n in LAWS if n not in MOVES_BY_ITSELF])
@pytest.mark.parametrize("optimizer", [pytest.param("momentum", marks=pytest.mark.slow), "adam"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in DIFFERENT else pytest.mark.slow) for n in ALLOWED])
@pytest.mark.sweep(5)
def test_laws_hold(name: str, optimizer: str, law: str) -> None:
    LAWS[law](ServerStep(ALLOWED[name], OPTIMIZERS[optimizer]()), 0)


def states(algorithm: Algorithm[Any], rounds: int = 4) -> list[Any]:
    run = Run(algorithm, 0)
    after_rounds = []
    for index in range(rounds):
        run.step(index)
        after_rounds.append(run.state)
    return after_rounds


@pytest.mark.parametrize("optimizer", [sgd(1.0), momentum(1.0, 0.0)], ids=["sgd", "momentum"])
@pytest.mark.parametrize("name", ALLOWED)
@pytest.mark.sweep(4)
def test_step_of_one_is_plain_averaging(name: str, optimizer: Any) -> None:
    plain, stepped = states(ALLOWED[name]), states(ServerStep(ALLOWED[name], optimizer))
    for plain_state, stepped_state in zip(plain, stepped, strict=True):
        for tensor in plain_state.params:
            torch.testing.assert_close(stepped_state.params[tensor], plain_state.params[tensor], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", REFUSED)
def test_other_algorithms_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{NEEDS}$"):
        ServerStep(REFUSED[name], sgd())


@pytest.mark.parametrize(
    "lacks",
    [{"linear": False}, {"traits": Traits(exact=True, server="other")}, {"traits": Traits(exact=True, server="step")}],
    ids=str,
)
def test_one_trait_is_enough_to_be_refused(lacks: Any) -> None:
    ServerStep(Mock(**QUALIFIES), sgd())
    with pytest.raises(ValueError, match=f"^{NEEDS}$"):
        ServerStep(Mock(**QUALIFIES | lacks), sgd())


@pytest.mark.parametrize(("method", "count"), [("init", 3), ("broadcast", 3), ("expand", 2), ("weight_of", 2)])
def test_server_step_leaves_the_method_its_arguments(method: str, count: int) -> None:
    inner: Any = Mock(**QUALIFIES)
    state, *rest = (object() for _ in range(count))
    given = state if method == "init" else ServerStepState(state, OptimState())
    result = getattr(ServerStep(inner, sgd()), method)(given, *rest)
    getattr(inner, method).assert_called_once_with(state, *rest)
    made = getattr(inner, method).return_value
    assert result == (ServerStepState(made, OptimState()) if method == "init" else made)


def test_stepped_mean_is_otherwise_the_uploads() -> None:
    """Its weight, its count and its round stay, and statistics are averaged."""
    before, mean = ({n: torch.full((2,), v).double() for n in ("layer.A", "buffer:layer.mean")} for v in (0.0, 2.0))
    inner: Any = Mock(**QUALIFIES)
    state, round = ServerStepState(ServerState(before), OptimState()), Round(3, 8, 0, 3)
    inner.finish.return_value = ServerState({n: t.float() for n, t in {**mean, "layer.A": mean["layer.A"] / 4}.items()})
    new = ServerStep(inner, momentum(0.25)).finish(state, Mean(mean, 7.0, 3), round)
    (given, stepped, at), _ = inner.finish.call_args
    assert (given, stepped.weight, stepped.count, at) == (state.inner, 7.0, 3, round)
    assert {n: t.tolist() for n, t in stepped.params.items()} == {"layer.A": [0.5] * 2, "buffer:layer.mean": [2.0] * 2}
    assert new.inner is inner.finish.return_value
    assert {n: t.tolist() for n, t in new.moments.first.items()} == {"layer.A": [2.0, 2.0]}


def test_rounded_tensor_keeps_its_moments() -> None:
    """A server's tensors in float32 are the steps' in float64, rounded."""
    inner: Any = Mock(**QUALIFIES)
    state = ServerStepState(ServerState({"layer.A": torch.zeros(2)}), OptimState())
    mean = {"layer.A": torch.full((2,), 0.3, dtype=torch.float64)}
    inner.finish.side_effect = lambda state, mean, round: ServerState({n: t.float() for n, t in mean.params.items()})
    new = ServerStep(inner, momentum(0.25)).finish(state, Mean(mean, 1.0, 1), Round(0, 8, 0, 3))
    assert new.params["layer.A"].dtype == torch.float32
    assert new.moments.first["layer.A"].equal(mean["layer.A"])


def test_wrapper_has_the_algorithms_traits_except_exact() -> None:
    for inner in map(Local, ALLOWED.values()):
        step = ServerStep(inner, sgd())
        assert (step.linear, step.traits) == (True, replace(inner.traits, exact=False))


def test_steps_equal_the_optimizers_with_the_head() -> None:
    """Compared round by round with the pure functions on the means of the uploads."""
    optimizer = adam(0.02, 0.8, 0.9, 0.01)
    run = Run(ServerStep(MADE["fedit"], optimizer), 0)
    x: Params = dict(run.state.params)
    moments = optimizer.init(x)
    for index in range(3):
        mean = weighted_mean(o.upload for o in run.step(index)).params
        step, moments = optimizer.update({n: mean[n] - x[n] for n in mean}, moments)
        x = {n: t + step[n] for n, t in x.items()}
        assert pick(mean, head)
        for n, tensor in run.state.params.items():
            torch.testing.assert_close(tensor, x[n], rtol=0, atol=1e-14)


@pytest.mark.parametrize("optimizer", [momentum(0.5, 0.9), adam(0.01)], ids=["momentum", "adam"])
def test_idle_factor_keeps_its_moments(optimizer: Any) -> None:
    after = [s.moments for s in states(ServerStep(RoLoRA(), optimizer))]
    assert "first.B" in after[0].first
    assert "first.A" not in after[0].first  # A was not trained yet
    for held, idle, part in ((0, 1, "B"), (1, 2, "A"), (2, 3, "B")):
        for moments in ("first", "second"):
            held_moments, idle_moments = getattr(after[held], moments), getattr(after[idle], moments)
            assert [
                n for n in held_moments if n.endswith(f".{part}") and not idle_moments[n].equal(held_moments[n])
            ] == []
            assert [n for n in held_moments if n.startswith("head:") and idle_moments[n].equal(held_moments[n])] == []


@pytest.mark.parametrize("optimizer", [momentum(0.5, 0.9), adam(0.01)], ids=["momentum", "adam"])
def test_redrawn_factors_lose_their_moments(optimizer: Any) -> None:
    random = states(ServerStep(FedLoRU(tau=2), optimizer), 3)
    assert {n for n in random[0].moments.first if not n.startswith("head:")} == {
        f"{path}.{part}" for path in ("first", "second") for part in "AB"
    }
    assert [n for n in random[1].moments.first if not n.startswith("head:")] == []
    kept = states(ServerStep(FedLoRU(tau=2, restart="momentum"), optimizer), 3)
    assert kept[1].moments.first.keys() == kept[0].moments.first.keys()
    # The next round starts like the first: the first moment comes from its delta alone.
    run = Run(ServerStep(FedLoRU(tau=2), optimizer), 0)
    for index in range(2):
        run.step(index)
    before: Params = run.state.params
    mean = weighted_mean(o.upload for o in run.step(2)).params
    delta = {n: mean[n] - before[n] for n in mean}
    _, fresh = optimizer.update(delta, optimizer.init(delta))
    for n, tensor in run.state.moments.first.items():
        assert tensor.equal(fresh.first[n]) != n.startswith("head:")


def test_base_gains_the_factors_that_the_server_stepped_to() -> None:
    run = Run(ServerStep(FedLoRU(tau=1), sgd(0.5)), 0)
    before: Params = run.state.params
    mean = weighted_mean(o.upload for o in run.step(0)).params
    for path, weight in run.problem.weights.items():
        a, b = (before[f"{path}.{p}"] + 0.5 * (mean[f"{path}.{p}"] - before[f"{path}.{p}"]) for p in "AB")
        change = run.state.inner.base[path]
        torch.testing.assert_close(change.factors().dense(), weight.scale * b @ a, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_survives_serialization(kind: str) -> None:
    """The run continues with the same bits."""
    algorithm = ServerStep(Local(RoLoRA()), OPTIMIZERS[kind]())
    run, again = Run(algorithm, 0), Run(algorithm, 0)
    for index in range(3):
        run.step(index)
    # As in a resumed run, ``like`` is a state at its start.
    again.state, again.locals = serialization.unpack(serialization.pack(run.state), again.state), dict(run.locals)
    assert serialization.same(again.state, run.state)
    assert isinstance(again.state.moments, OptimState)
    for federation in (run, again):
        federation.step(3)
    assert serialization.same(again.state, run.state)
