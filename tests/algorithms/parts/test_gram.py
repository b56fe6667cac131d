"""FLoRG's parameterisation: its start, and the factors that the network sees."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rondo.algorithm import Round
from rondo.algorithms.factors.florg import FLoRG
from rondo.algorithms.parts.gram import GramState, gram_view
from rondo.engine.wire import serialization
from rondo.testing import TwoLayers

BASES = ["orthogonal", "kaiming", "svd"]
GRAM_INITS = ["gaussian", "kaiming", "orthogonal"]


def start(problem: TwoLayers, params: Any = None, seed: int = 0, **fields: Any) -> GramState:
    given = problem.params if params is None else params
    return FLoRG(**fields).init(given, problem.weights, Round(0, 1, seed, 3))


@pytest.mark.parametrize("gram_init", GRAM_INITS)
@pytest.mark.parametrize("bases", BASES)
def test_view_is_scale_times_l_gt_g_r(bases: str, gram_init: str) -> None:
    problem = TwoLayers.make(0)
    state = start(problem, bases=bases, gram_init=gram_init)
    seen = gram_view(state.params)
    assert seen.keys() == problem.params.keys()
    for path, weight in problem.weights.items():
        g, left, right = (state.params[f"{path}.{n}"] for n in "GLR")
        k = min(weight.shape)
        assert (g.shape, left.shape, right.shape) == ((2, k), (weight.shape[0], k), (k, weight.shape[1]))
        change = problem.delta(seen, state.base, path)
        torch.testing.assert_close(change, weight.scale * left @ g.T @ g @ right, rtol=0, atol=1e-14)


@pytest.mark.parametrize("bases", ["orthogonal", "svd"])
def test_orthogonal_bases_are_semi_orthogonal(bases: str) -> None:
    state = start(TwoLayers.make(0), bases=bases)
    for path in ("first", "second"):
        left, right = state.params[f"{path}.L"], state.params[f"{path}.R"]
        identity = torch.eye(left.shape[1], dtype=torch.float64)
        torch.testing.assert_close(left.T @ left, identity)
        torch.testing.assert_close(right @ right.T, identity)


def test_svd_bases_are_singular_vectors_of_the_weight() -> None:
    problem = TwoLayers.make(0)
    state = start(problem, bases="svd")
    for path, weight in problem.weights.items():
        core = state.params[f"{path}.L"].T @ weight.matrix() @ state.params[f"{path}.R"].T
        torch.testing.assert_close(core, torch.diag(torch.linalg.svdvals(weight.matrix())), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bases", BASES)
def test_offset_starts_at_the_pretrained_model(bases: str) -> None:
    problem = TwoLayers.make(0)
    state = start(problem, bases=bases, gram_std=0.5, offset=True)
    seen = gram_view(state.params)
    for path in problem.weights:
        assert problem.delta(seen, state.base, path).abs().max() < 1e-14
        assert problem.delta(seen, {}, path).abs().max() > 1e-2


@pytest.mark.parametrize("offset", [False, True])
def test_trained_adapter_is_kept_in_the_base(offset: bool) -> None:
    problem = TwoLayers.make(0)
    trained = {n: t + 1 if n.endswith(".B") else t for n, t in problem.params.items()}
    state = start(problem, trained, offset=offset)
    seen = gram_view(state.params)
    for path, weight in problem.weights.items():
        carried = weight.scale * trained[f"{path}.B"] @ trained[f"{path}.A"]
        left, g, right = (state.params[f"{path}.{n}"] for n in "LGR")
        drawn = 0.0 if offset else weight.scale * left @ g.T @ g @ right
        torch.testing.assert_close(problem.delta(seen, state.base, path), carried + drawn, rtol=0, atol=1e-13)


def test_fresh_adapter_changes_no_base() -> None:
    assert start(TwoLayers.make(0)).base == {}


def test_start_depends_on_the_seed_only() -> None:
    problem = TwoLayers.make(0)
    assert serialization.same(start(problem, seed=1), start(problem, seed=1))
    assert not serialization.same(start(problem, seed=1), start(problem, seed=2))


@pytest.mark.parametrize("gram_init", ["gaussian", "orthogonal"])
def test_gram_std_scales_the_start(gram_init: str) -> None:
    problem = TwoLayers.make(0)
    small, large = (start(problem, gram_init=gram_init, gram_std=std).params for std in (0.1, 0.3))
    torch.testing.assert_close(large["first.G"], 3 * small["first.G"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_state_has_the_adapters_dtype(dtype: torch.dtype) -> None:
    problem = TwoLayers.make(0)
    state = start(problem, {n: t.to(dtype) for n, t in problem.params.items()}, offset=True)
    assert {t.dtype for t in state.params.values()} == {dtype}
    assert {t.dtype for t in serialization.tensors(state.base)} == {dtype}
