"""Robust rules against definitions written out one vector at a time, against ByzFL's, and around every algorithm."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rondo import algorithms
from rondo.algorithm import Client, Round, ServerState, Upload
from rondo.algorithms.table import RULES, Rule
from rondo.algorithms.wrappers.local import Local
from rondo.algorithms.wrappers.robust import (
    MEANS,
    Robust,
    _changes,
    _distances,
    _inner,
    clip_factors,
    combined,
    squared_distances,
)
from rondo.algorithms.wrappers.server_optimizer import OPTIMIZERS, ServerStep
from rondo.config import ConfigError, load
from rondo.lowrank import LowRank
from rondo.params import everything
from rondo.runs.assembling.wrapping import make_algorithm
from rondo.testing.testbed import TwoLayers
from rondo.traits import Traits

Vectors = NDArray[np.float64]
NAMES = [n for n in algorithms.names() if algorithms.entry(n).traits.keeps != everything]  # the others send nothing

# The rules in plain Python, from their definitions; they share no line with the code under test.


def nearest(vectors: Vectors, k: int, count: int) -> list[int]:
    return sorted(range(len(vectors)), key=lambda j: (float(np.sum((vectors[k] - vectors[j]) ** 2)), j))[:count]


def trimmed(vectors: Vectors, f: int) -> Vectors:
    columns = [sorted(vectors[:, c])[f : len(vectors) - f] for c in range(vectors.shape[1])]
    return np.array([math.fsum(c) / len(c) for c in columns])


def krum_order(vectors: Vectors, f: int) -> list[int]:
    scores = [
        math.fsum(float(np.sum((vectors[k] - vectors[j]) ** 2)) for j in nearest(vectors, k, len(vectors) - f))
        for k in range(len(vectors))
    ]
    return sorted(range(len(vectors)), key=lambda k: (scores[k], k))


def weiszfeld(vectors: Vectors) -> Vectors:
    z = np.zeros(vectors.shape[1])
    for _ in range(3):
        w = [1 / max(0.1, float(np.linalg.norm(v - z))) for v in vectors]
        z = sum(a * v for a, v in zip(w, vectors, strict=True)) / math.fsum(w)
    return z


def clipped(vectors: Vectors) -> Vectors:
    norms = [float(np.linalg.norm(v)) for v in vectors]
    bound = float(np.median(norms))
    return np.mean([v * min(1.0, bound / n) if n else v for v, n in zip(vectors, norms, strict=True)], axis=0)


ORACLE: dict[str, Callable[[Vectors, int], Vectors]] = {
    "clip": lambda v, f: clipped(v),
    "median": lambda v, f: np.median(v, axis=0),
    "trimmed-mean": trimmed,
    "krum": lambda v, f: v[krum_order(v, f)[0]],
    "multi-krum": lambda v, f: np.mean(v[krum_order(v, f)[: len(v) - f]], axis=0),
    "geometric-median": lambda v, f: weiszfeld(v),
    "nnm-trimmed-mean": lambda v, f: trimmed(
        np.array([np.mean(v[nearest(v, k, len(v) - f)], axis=0) for k in range(len(v))]), f
    ),
}


def apply(rule: Rule, vectors: Vectors, f: int) -> Vectors:
    x = torch.from_numpy(vectors)
    result: Vectors = combined(rule, x, squared_distances(x), f).numpy()
    return result


@pytest.mark.parametrize("rule", RULES)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 12), d=st.integers(1, 7), share=st.floats(0, 0.49))
def test_rule_equals_its_definition(rule: Rule, seed: int, n: int, d: int, share: float) -> None:
    f = min(int(share * n), (n - 1) // 2)
    vectors = np.random.default_rng(seed).normal(size=(n, d)) * np.exp(
        np.random.default_rng(seed + 1).normal(size=(n, 1))
    )
    np.testing.assert_allclose(apply(rule, vectors, f), ORACLE[rule](vectors, f), rtol=1e-10, atol=1e-12)


GOLDEN = json.loads(Path(__file__).with_name("byzfl.json").read_text())
"""Results of ByzFL's own aggregators; ``source`` in the file names them."""


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: f"f={case['f']}")
@pytest.mark.parametrize("rule", RULES)
def test_rule_equals_byzfls(rule: Rule, case: dict[str, Any]) -> None:
    result = apply(rule, np.array(case["vectors"]), case["f"])
    np.testing.assert_allclose(result, case["results"][rule], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
@given(seed=st.integers(0, 10**6))
def test_rule_ignores_order_and_origin(rule: Rule, seed: int) -> None:
    """Weiszfeld's iteration starts at zero and clipping is around zero, so these two do depend on the origin."""
    g = np.random.default_rng(seed)
    vectors, order, shift = g.normal(size=(7, 5)), g.permutation(7), g.normal(size=5)
    result = apply(rule, vectors, 2)
    np.testing.assert_allclose(apply(rule, vectors[order], 2), result, rtol=1e-9, atol=1e-12)
    if rule not in ("clip", "geometric-median"):
        np.testing.assert_allclose(apply(rule, vectors + shift, 2), result + shift, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_rule_stays_near_honest_uploads(rule: Rule) -> None:
    g = np.random.default_rng(0)
    honest = g.normal(size=(8, 20)) + 3
    for size in (1e2, 1e6):
        vectors = np.concatenate([honest, -size * np.ones((3, 20))])
        distance = np.linalg.norm(apply(rule, vectors, 3) - honest.mean(0))
        # Clipping only bounds an attacker's share by an honest norm; the other rules leave attackers out.
        assert distance < (2 * np.linalg.norm(honest, axis=1).max() if rule == "clip" else 8), (rule, size)
        assert np.linalg.norm(vectors.mean(0) - honest.mean(0)) > 0.2 * size


# Distances of products


@given(seed=st.integers(0, 10**6))
def test_inner_products_without_forming_the_products(seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    ranks = [1, 3, 2]
    products = [
        LowRank(
            torch.randn(6, r, generator=g, dtype=torch.float64), torch.randn(r, 5, generator=g, dtype=torch.float64)
        )
        for r in ranks
    ]
    expected = [[float((p.dense() * q.dense()).sum()) for q in products] for p in products]
    torch.testing.assert_close(_inner(products), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@functools.cache
def problem() -> TwoLayers:
    return TwoLayers.make(1, clients=7)


def uploads(name: str, scale: float = 0.3) -> tuple[Any, list[Upload], Round]:
    """A state, seven clients' uploads around a common change of it, and their round."""
    linear, round = problem(), Round(0, 4, 0, 7)
    algorithm = algorithms.get(name)
    state = algorithm.init(linear.params, linear.weights, round)
    from rondo.algorithms.trial import trial_upload

    g = torch.Generator().manual_seed(0)
    received = []
    for client in linear.clients:
        trial = trial_upload(algorithm, algorithm.broadcast(state, client, round), client, round)
        params = {n: t + 1 + scale * torch.randn(t.shape, generator=g, dtype=t.dtype) for n, t in trial.params.items()}
        received.append(Upload(client, params, float(client.num_examples)))
    return state, received, round


def test_equal_products_have_no_distance() -> None:
    """Krum on factors would leave out an honest client whose factors are the others' in other coordinates."""
    state, received, round = uploads("flexlora", scale=1e-3)
    g = torch.randn(2, 2, generator=torch.Generator().manual_seed(5), dtype=torch.float64) + 3 * torch.eye(2)
    turned = {}
    for path in problem().weights:
        a, b = received[0].params[f"{path}.A"], received[0].params[f"{path}.B"]
        turned |= {f"{path}.A": torch.linalg.inv(g) @ a, f"{path}.B": b @ g}
    turned_upload = Upload(received[0].client, {**received[0].params, **turned}, received[0].weight)
    robust = Robust(algorithms.get("flexlora"), "multi-krum", 2)
    states = [robust.aggregate(state, [first, *received[1:]], round) for first in (received[0], turned_upload)]
    for path in problem().weights:
        before, after = (s.params[f"{path}.B"] @ s.params[f"{path}.A"] for s in states)
        torch.testing.assert_close(after, before, rtol=1e-9, atol=1e-9)


def test_distances_are_of_products_and_of_other_tensors() -> None:
    _, received, _ = uploads("flexlora")
    changes = _changes(received, {})
    flat = torch.stack([torch.cat([t.flatten() for t in c.values()]) for c in changes])
    paths = list(problem().weights)
    dense = [{p: u.params[f"{p}.B"] @ u.params[f"{p}.A"] for p in paths} for u in received]
    for change, products in zip(changes, dense, strict=True):
        products |= {n: t for n, t in change.items() if n.startswith("head:")}
        assert len(products) == 3
    expected = [[sum(float((p[n] - q[n]).square().sum()) for n in p) for q in dense] for p in dense]
    found = _distances(changes, received, flat)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)


# Around algorithms


def rules_of(name: str) -> list[Rule]:
    return [rule for rule in RULES if algorithms.entry(name).linear or rule not in MEANS]


PAIRS = [(name, rule) for name in NAMES for rule in rules_of(name)]


@pytest.mark.parametrize(("name", "rule"), PAIRS)
def test_equal_uploads_give_the_plain_aggregate(name: str, rule: Rule) -> None:
    state, received, round = uploads(name)
    same = [Upload(u.client, received[0].params, 1.0) for u in received]
    expected = algorithms.get(name).aggregate(state, same, round)
    robust = Robust(algorithms.get(name), rule, 2).aggregate(state, same, round)
    # Compared as models: a method that stacks single uploads has a smaller stack when fewer are left.
    for a, b in zip(*(_model(algorithms.get(name), s, round).values() for s in (robust, expected)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(("name", "rule"), [(n, r) for n, r in PAIRS if n in ("fedit", "rolora", "flexlora")])
def test_claimed_weights_and_the_order_of_tensors_count_for_nothing(name: str, rule: Rule) -> None:
    state, received, round = uploads(name)
    claimed = [replace(u, weight=10.0**k) for k, u in enumerate(received)]
    turned = [replace(u, params=dict(reversed(list(u.params.items())))) if k % 2 else u for k, u in enumerate(received)]
    robust = Robust(algorithms.get(name), rule, 2)
    expected, *others = (robust.aggregate(state, sent, round).params for sent in (received, claimed, turned))
    for new in others:
        torch.testing.assert_close(new, expected, rtol=0, atol=0)


@pytest.mark.parametrize(("name", "rule"), PAIRS)
def test_wild_uploads_do_not_move_the_model_far(name: str, rule: Rule) -> None:
    state, received, round = uploads(name)
    algorithm = algorithms.get(name)
    wild = [Upload(u.client, {n: -1e4 * t for n, t in u.params.items()}, u.weight) for u in received[:2]]
    honest = algorithm.aggregate(state, [Upload(u.client, u.params, 1.0) for u in received[2:]], round)
    robust = Robust(algorithm, rule, 2).aggregate(state, [*wild, *received[2:]], round)
    plain = algorithm.aggregate(state, [*wild, *received[2:]], round)

    def far(other: Any) -> float:
        models = [_model(algorithm, s, round) for s in (other, honest)]
        return math.sqrt(sum(float((models[0][n] - models[1][n]).square().sum()) for n in models[0]))

    assert far(robust) < far(plain) / 50


def _model(algorithm: Any, state: Any, round: Round) -> dict[str, torch.Tensor]:
    """A newcomer's model, and its broadcast where the algorithm keeps local tensors."""
    shared = algorithm.broadcast(state, Client("newcomer", 0), round)
    local = algorithm.local_init(shared, Client("newcomer", 0))
    seen = algorithm.view(shared, local)
    model = {path: problem().delta(seen, shared.base, path) for path in problem().weights}
    return {**model, **(shared.params if local else {})}


@pytest.mark.parametrize(("rule", "count"), [("clip", 7), ("krum", 1), ("multi-krum", 5)])
def test_server_of_single_uploads_gets_the_chosen_ones(rule: Rule, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with weight 1, in the order in which they came; the rules of Krum leave out the wild ones."""
    state, received, round = uploads("flexlora")
    wild = [replace(u, params={n: -1e4 * t for n, t in u.params.items()}) for u in received[:2]]
    chosen: list[Upload] = []
    algorithm = algorithms.get("flexlora")
    monkeypatch.setattr(type(algorithm), "aggregate", lambda _, state, given, round: chosen.extend(given))
    Robust(algorithm, rule, 2).aggregate(state, [*wild, *received[2:]], round)
    allowed = [u.client.id for u in (received if rule == "clip" else received[2:])]
    ids = [u.client.id for u in chosen]
    assert len(ids) == count
    assert ids == [name for name in allowed if name in ids]
    assert {u.weight for u in chosen} == {1.0}
    if rule == "clip":
        sizes = [math.sqrt(sum(float(t.square().sum()) for t in u.params.values())) for u in [*wild, *received[2:]]]
        middle = sorted(sizes)[3]
        for upload, size, sent in zip(chosen, sizes, [*wild, *received[2:]], strict=True):
            for name, tensor in sent.params.items():
                torch.testing.assert_close(upload.params[name], min(1.0, middle / size) * tensor, rtol=1e-9, atol=1e-9)


def test_rules_for_servers_of_single_uploads_are_named() -> None:
    with pytest.raises(ValueError, match=r"median makes a mean, .* single uploads; take clip, krum, multi-krum$"):
        Robust(algorithms.get("flexlora"), "median", 1)


def test_too_few_uploads_change_nothing() -> None:
    state, received, round = uploads("fedit")
    robust = Robust(algorithms.get("fedit"), "median", 2)
    assert robust.aggregate(state, received[:4], round) is state
    assert robust.aggregate(state, received[:5], round) is not state


@pytest.mark.parametrize(("server", "rule"), [("mean", "median"), ("other", "trimmed-mean")])
def test_mean_of_a_rule_counts_every_upload_once(server: Any, rule: Rule) -> None:
    """Whatever weights they claim. Uploads in other coordinates have no start to be measured from."""
    inner: Any = Mock(linear=True, traits=Traits(exact=True, server=server))
    inner.expand.side_effect = lambda state, upload: upload
    state, round = ServerState({"a": torch.full((2, 1), -9.0), "c": torch.zeros(1)}), Round(3, 8, 0, 3)
    sent = [
        Upload(Client(str(k), 1), {"a": torch.full((2, 1), float(k)), "b": torch.full((3,), -k)}, 10.0**k)
        for k in range(5)
    ]
    assert Robust(inner, rule, 1).aggregate(state, iter(sent), round) is inner.finish.return_value
    assert [call.args for call in inner.expand.call_args_list] == [(state, upload) for upload in sent]
    (given, mean, at), _ = inner.finish.call_args
    assert (given, mean.weight, mean.count, at) == (state, 5.0, 5, round)
    assert {n: t.tolist() for n, t in mean.params.items()} == {"a": [[2.0], [2.0]], "b": [-2.0] * 3}
    assert {t.dtype for t in mean.params.values()} == {torch.float64}


def test_origin_matters_by_the_coordinates_of_the_uploads() -> None:
    """Clipping is around the broadcast tensors, or around zero where uploads are in other coordinates."""
    means = []
    for server in ("mean", "other"):
        inner: Any = Mock(linear=True, traits=Traits(exact=True, server=server))
        inner.expand.side_effect = lambda state, upload: upload
        sent = [Upload(Client(str(k), 1), {"a": torch.tensor([value])}, 1.0) for k, value in enumerate((2.0, 3.0, 7.0))]
        Robust(inner, "clip", 1).aggregate(ServerState({"a": torch.tensor([4.0])}), sent, Round(0, 8, 0, 3))
        means.append(float(inner.finish.call_args.args[1].params["a"]))
    assert means == pytest.approx([4 + (-2 - 1 + 2) / 3, (2 + 3 + 3) / 3])


@pytest.mark.parametrize("rule", ["clip", "krum", "multi-krum"])
def test_server_of_single_uploads_gets_state_and_round(rule: Rule) -> None:
    inner: Any = Mock(linear=False, traits=Traits(exact=True))
    inner.expand.side_effect = lambda state, upload: upload
    state, round = ServerState({"a": torch.ones(1)}), Round(3, 8, 0, 3)
    sent = [Upload(Client(str(k), 1), {"a": torch.ones(1)}, 2.0) for k in range(3)]
    assert Robust(inner, rule, 0).aggregate(state, sent, round) is inner.aggregate.return_value
    (given, chosen, at), _ = inner.aggregate.call_args
    assert (given, at) == (state, round)
    # Equal uploads: the first ones are chosen, and scaling leaves the very tensors.
    assert chosen == [replace(upload, weight=1.0) for upload in (sent[:1] if rule == "krum" else sent)]


def test_zero_change_is_not_scaled() -> None:
    factors = clip_factors(torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 10.0]], dtype=torch.float64))
    assert factors.tolist() == [1.0, 1.0, 0.5]
    assert clip_factors(torch.zeros(2, 3)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("name", "rule"), [(n, r) for n, r in PAIRS if n in ("fedit", "flexlora")])
def test_single_upload_gives_the_plain_aggregate(name: str, rule: Rule) -> None:
    state, (only, *_), round = uploads(name)
    algorithm = algorithms.get(name)
    expected = _model(algorithm, algorithm.aggregate(state, [only], round), round)
    found = _model(algorithm, Robust(algorithm, rule, 0).aggregate(state, [only], round), round)
    for n, tensor in expected.items():
        torch.testing.assert_close(found[n], tensor, rtol=1e-9, atol=1e-9)


def test_robust_wraps_local_head_and_server_optimizer() -> None:
    inner = ServerStep(Local(algorithms.get("fedit")), OPTIMIZERS["momentum"]())
    robust = Robust(inner, "trimmed-mean", 1)
    assert (robust.linear, robust.traits) == (False, replace(inner.traits, exact=False))
    linear, round = problem(), Round(0, 4, 0, 7)
    state = robust.init(linear.params, linear.weights, round)
    _, received, _ = uploads("fedit")
    headless = [
        Upload(u.client, {n: t for n, t in u.params.items() if not n.startswith("head:")}, 1.0) for u in received
    ]
    new = robust.aggregate(state, headless, round)
    assert [n for n, t in new.moments.first.items() if t.any()], "no moment moved"
    assert not new.params["first.A"].equal(state.params["first.A"])


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"robust": {"rule": "median", "byzantine": 2}}, "clients.min_clients: .* raise it to 5"),
        ({"robust": {"rule": "mean"}}, "robust.rule: "),
        ({"robust": {"rule": "krum", "byzantine": -1}}, "robust.byzantine: "),
        (
            {"algorithm": {"name": "flexlora"}, "robust": {"rule": "median", "byzantine": 0}},
            "robust.rule: flexlora: its server works on single uploads, not on their mean; take clip, krum",
        ),
    ],
)
def test_conflicting_settings_are_refused(sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_algorithm(load(sections))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mean", 1), rf"^rule is one of {', '.join(RULES)}; got 'mean'$"),
        (("median", -1), "^byzantine is a number of clients; got -1$"),
    ],
)
def test_invalid_arguments_are_refused(arguments: Sequence[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Robust(algorithms.get("fedit"), *arguments)
