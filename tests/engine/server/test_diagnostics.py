"""A round's diagnostics against dense matrices, for every algorithm; they change nothing else."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial as make_partial
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import Tensor

import tiny
from composed import Composed
from methods import every_method
from records import timeless
from rondo import algorithms
from rondo.algorithm import Algorithm, Client, Round, Shared, Upload
from rondo.algorithms.wrappers.local import Local
from rondo.algorithms.wrappers.server_optimizer import ServerStep, momentum
from rondo.algorithms.wrappers.wrapper import Wrapper
from rondo.config import RunConfig, load
from rondo.data.members import Member
from rondo.data.population import Population
from rondo.engine.server import diagnostics, exchange
from rondo.engine.server.diagnostics import KEYS, diagnose, measure
from rondo.engine.server.exchange import Exchange
from rondo.engine.wire import serialization
from rondo.models.networks.adapted_layer import Site
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.params import Params, Role, add_client_axis, buffer, client_row, down, head, pick, role, up, whole
from rondo.tasks.language.sequences import SequenceClassification
from rondo.tasks.language.text import TextExample
from rondo.testing import SgdTrainer, TwoLayers
from rondo.testing.testbed import Testbed, WholeLayers
from watched import failing

NAMES = algorithms.names()
OPAQUE = {
    "fedsa-lora": "clients keep B of their own, so the server does not know their models",
    "pfedloru": "clients keep pA, pB of their own, so the server does not know their models",
    "fedalt": "a router weighs several pairs of factors per token, so no matrix is the change",
    "pfedlora": "clients keep pA, pB of their own, so the server does not know their models",
    "lg-fedavg": "clients keep A, B of their own, so the server does not know their models",
    "local": "clients keep A, B of their own, so the server does not know their models",
    "ditto": "clients keep A, B of their own, so the server does not know their models",
    "apfl": "clients keep A, B of their own, so the server does not know their models",
    "l2gd": "clients keep A, B of their own, so the server does not know their models",
    "fed-mtl": "clients keep A, B of their own, so the server does not know their models",
    "slora": "clients send S, which are not low-rank factors",
}
FROM_UPLOADS = ("interference", "truncation_error", "alignment_mean", "alignment_min")
TOLERANCE = 1e-10

# --- rounds on a small problem, and the textbook ----------------------------------------------------------------


@dataclass(frozen=True)
class Played:
    """A round: the arguments of :func:`measure`, and the same as dense matrices by module."""

    algorithm: Algorithm[Any]
    sites: Mapping[str, Site]
    before: Any
    after: Any
    uploads: Sequence[Upload]
    round: Round
    initial: Params
    start: Mapping[str, np.ndarray]
    """The changes of the modules since the run's start, as the server's model has them before the round."""
    end: Mapping[str, np.ndarray]
    trained: Sequence[Mapping[str, np.ndarray]]
    """The clients' real models, from the trainer and not from their uploads."""
    products: Sequence[Mapping[str, np.ndarray]]
    """The same without the base's change."""
    factors: tuple[Params, Params]

    def measured(self) -> diagnostics.Diagnostics:
        return measure(self.algorithm, self.sites, self.before, self.after, self.uploads, self.round, self.initial)


def play(
    algorithm: Algorithm[Any],
    make: Callable[..., Testbed] = TwoLayers.make,
    *,
    ranks: Sequence[int | None] = (None, None, None, None),
    rounds: int = 3,
    steps: int = 3,
    partial: bool = False,
) -> Iterator[Played]:
    """``make``: the network; all of its tensors count, but beside factors a head alone does not."""
    problem = make(3, clients=len(ranks))
    people = [replace(c, rank=r) for c, r in zip(problem.clients, ranks, strict=True)]
    sites = {p: Site(p, "linear", w.shape, problem.rank, w.scale, 0.0) for p, w in problem.weights.items()}
    state = algorithm.init(problem.params, problem.weights, Round(0, rounds, 0, len(people)))
    held = algorithm.broadcast(state, Client("newcomer", 0), Round(0, rounds, 0, len(people))).params
    own_head = pick(algorithm.local_init(Shared(held, {}), Client("newcomer", 0)), head)
    locals: dict[str, Params] = {}

    def dense(seen: Params, base: Any) -> dict[str, np.ndarray]:
        changes = problem.changes(seen, base)
        sent = {n for n in held if whole(n) and not buffer(n) and n not in own_head}
        sent = {n for n in sent if not sites or not all(head(m) for m in sent)}
        kept = {n: t for n, t in changes.items() if n in sites or n in sent}
        return {n: (t - problem.params[n] if n in problem.params else t).numpy() for n, t in kept.items()}

    def newcomer(held: Any, round: Round) -> tuple[Shared, Params]:
        shared = algorithm.broadcast(held, Client("newcomer", 0), round)
        return shared, algorithm.view(shared, algorithm.local_init(shared, Client("newcomer", 0)))

    for t in range(rounds):
        round = Round(t, rounds, 0, len(people))
        trained, products, uploads = [], [], []
        for client in people[t % 2 :: 2] if partial else people:
            shared = algorithm.broadcast(state, client, round)
            local = locals.get(client.id, algorithm.local_init(shared, client))
            trainer = SgdTrainer((client,), round, problem.loss, shared.base, steps)
            batched = replace(shared, params=add_client_axis(shared.params))
            (upload,), kept = algorithm.client_update(batched, add_client_axis(local), trainer)
            locals[client.id] = client_row(kept, 0)
            fit = filled(shared.params, client_row(trainer.fits[-1], 0), upload.params)
            done = replace(shared, params={**shared.params, **fit})
            seen = algorithm.view(done, locals[client.id])
            trained.append(dense(seen, shared.base))
            products.append(dense(seen, {}))
            uploads.append(upload)
        after = algorithm.aggregate(state, uploads, round)
        (sent, old), (next_sent, new) = newcomer(state, round), newcomer(after, replace(round, index=t + 1))
        gram = any(role(n) in (Role.GRAM, Role.CORE) for n in sent.params)
        factors = (old, new) if gram else (sent.params, next_sent.params)
        start, end = dense(old, sent.base), dense(new, next_sent.base)
        yield Played(
            algorithm, sites, state, after, uploads, round, problem.params, start, end, trained, products, factors
        )
        state = after


def filled(before: Params, fit: Params, upload: Params) -> Params:
    """``fit`` with the slots that a client did not hold, those of ``before``."""
    full = dict(fit)
    for name in (n for n, t in fit.items() if role(n) in (Role.DOWN, Role.UP) and t.shape != before.get(n, t).shape):
        slots = upload[f"{name.rpartition('.')[0]}.I"].long()
        full[name] = before[name].clone()
        full[name][(slots,) if role(name) is Role.DOWN else (slice(None), slots)] = fit[name]
    return full


def size(matrices: Mapping[str, Any]) -> float:
    return math.sqrt(sum(float((np.asarray(m) ** 2).sum()) for m in matrices.values()))


def ratio(above: float, below: float) -> float | None:
    return above / below if below > 1e-14 else None


def textbook(played: Played) -> dict[str, float | None]:
    """Every number by its definition, from dense matrices."""
    weights = [u.weight for u in played.uploads]
    paths = list(played.start)

    def mean(models: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        return {m: sum(w / sum(weights) * x[m] for w, x in zip(weights, models, strict=True)) for m in paths}  # type: ignore[misc]

    def less(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {m: a[m] - b[m] for m in paths}

    mean_model, products, step = mean(played.trained), mean(played.products), less(played.end, played.start)
    products = {m: products[m] for m in played.sites}
    tails = {m: np.linalg.svd(products[m])[1][played.sites[m].rank :] for m in played.sites}
    cosines = []
    for model in played.trained:
        moved = less(model, played.start)
        if size(moved) > 1e-14 and size(step) > 1e-14:
            cosines.append(sum(float((moved[m] * step[m]).sum()) for m in paths) / size(moved) / size(step))
    drift, angles = [], []
    for select in (down, up):
        old, new = (pick(f, lambda n, s=select: s(n)) for f in played.factors)  # type: ignore[misc]
        same = bool(new) and all(t.shape == new[n].shape for n, t in old.items())
        drift.append(ratio(size({n: new[n] - t for n, t in old.items()}), size(old)) if same else None)
        angles.append(
            [projections_apart(t.numpy(), new[n].numpy(), select is up) for n, t in old.items()] if same else []
        )
    angle = [
        np.mean([a for a in part if a is not None]) if any(a is not None for a in part) else None for part in angles
    ]
    trained_whole = {m: played.initial[m].numpy() + played.start[m] for m in paths if m not in played.sites}
    values = {m: np.linalg.svd(played.end[m])[1] for m in paths if played.end[m].ndim > 1}
    updates = [np.linalg.svd(step[m])[1] for m in values]
    return {
        "interference": ratio(size(less(mean_model, played.end)), size(less(mean_model, played.start))),
        "truncation_error": ratio(size(tails), size(products)),
        "drift_A": drift[0],
        "drift_B": drift[1],
        "drift_whole": ratio(size({m: step[m] for m in trained_whole}), size(trained_whole)),
        "angle_A": angle[0],
        "angle_B": angle[1],
        "alignment_mean": sum(cosines) / len(cosines) if cosines else None,
        "alignment_min": min(cosines, default=None),
        "stable_rank": mean_stable_rank(list(values.values())),
        "update_stable_rank": mean_stable_rank(updates),
        "singular_values": {m: v.tolist() for m, v in values.items()},
    }


def mean_stable_rank(spectra: Sequence[np.ndarray]) -> float | None:
    ranks = [float((v**2).sum() / v[0] ** 2) for v in spectra if v[0] > 1e-14]
    return sum(ranks) / len(ranks) if ranks else None


def projections_apart(old: np.ndarray, new: np.ndarray, columns: bool) -> float | None:
    """The spectral norm of the difference of the projections on two spaces of one dimension, which is the sine of
    their largest principal angle."""
    one, other = (m if columns else m.T for m in (old, new))
    if min(np.linalg.matrix_rank(m) for m in (one, other)) < one.shape[1]:
        return None
    return float(np.linalg.norm(one @ np.linalg.pinv(one) - other @ np.linalg.pinv(other), 2))


def assert_textbook(played: Played, reason: str | None) -> None:
    measured, expected = played.measured(), textbook(played)
    assert tuple(measured) == KEYS
    assert measured["reason"] == reason
    values, dense = measured.pop("singular_values"), expected.pop("singular_values")
    assert values.keys() == dense.keys()  # type: ignore[union-attr]
    for name, mine in values.items():  # type: ignore[union-attr]
        filled = [*mine, *[0.0] * (len(dense[name]) - len(mine))]  # type: ignore[index]
        # Of a whole tensor from the squares.
        assert filled == pytest.approx(dense[name], rel=TOLERANCE, abs=1e-10 if name in played.sites else 1e-7)  # type: ignore[index]
    for key, value in expected.items():
        if reason is not None and key in FROM_UPLOADS:
            assert measured[key] is None, key
        else:
            assert measured[key] == (None if value is None else pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE)), key


# --- every algorithm --------------------------------------------------------------------------------------------

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in NAMES),
    ("federa", {"aggregation": "product"}),
    ("fedloru", {"tau": 2}),
    ("fedloru", {"tau": 2, "restart": "momentum"}),
    ("florg", {"offset": True}),
    ("flexlora", {"split": "both"}),
    ("pfedlora", {"phases": "together"}),
]


@pytest.mark.parametrize("partial", [False, True], ids=["full", "partial"])
@pytest.mark.parametrize(("name", "fields"), VARIANTS, ids=str)
@pytest.mark.sweep(6)
def test_diagnostics_equal_textbook(name: str, fields: dict[str, Any], partial: bool) -> None:
    for played in play(algorithms.get(name, **fields), partial=partial):
        assert_textbook(played, OPAQUE.get(name))


@final
class Timed(Wrapper[Any]):
    """A broadcast depends on its round, as the contract allows."""

    def broadcast(self, state: Any, client: Client, round: Round) -> Shared:
        shared = super().broadcast(state, client, round)
        return replace(shared, params={n: (1 + round.index) * t for n, t in shared.params.items()})


def test_broadcast_after_a_round_is_the_next_rounds() -> None:
    for played in play(Timed(algorithms.get("fedit"))):
        measured, expected = played.measured(), textbook(played)
        for key in ("drift_A", "drift_B", "stable_rank"):
            assert measured[key] == (None if expected[key] is None else pytest.approx(expected[key], rel=TOLERANCE)), (
                key
            )


@pytest.mark.parametrize("name", every_method())
def test_diagnostics_with_local_head(name: str) -> None:
    for played in play(Local(algorithms.get(name)), rounds=2):
        assert_textbook(played, OPAQUE.get(name))


@pytest.mark.parametrize("name", [n for n in NAMES if algorithms.entry(n).traits.client_ranks])
def test_diagnostics_with_different_ranks(name: str) -> None:
    """A run gives all clients ranks of their own or none, and Fed-PLoRA's server counts on that."""
    most = 2 if name == "fed-plora" else None
    for played in play(algorithms.get(name), ranks=(1, 2, most, 1)):
        assert_textbook(played, OPAQUE.get(name))


WHOLE = [name for name in NAMES if not algorithms.entry(name).traits.needs_factors]
KEPT_WHOLE = "clients keep whole tensors of their own, so the server does not know their models"


@pytest.mark.parametrize("partial", [False, True], ids=["full", "partial"])
@pytest.mark.parametrize("name", WHOLE)
def test_diagnostics_of_whole_tensors(name: str, partial: bool) -> None:
    for played in play(algorithms.get(name), WholeLayers.make, partial=partial):
        assert_textbook(played, KEPT_WHOLE if name in OPAQUE else None)


@pytest.mark.parametrize("name", every_method())
def test_diagnostics_of_whole_tensors_beside_factors(name: str) -> None:
    for played in play(algorithms.get(name), make_partial(TwoLayers.make, beside=True), rounds=2):
        assert_textbook(played, OPAQUE.get(name))


def test_diagnostics_with_more_clients_than_layer_width() -> None:
    for played in play(algorithms.get("fedit"), ranks=(None,) * 9, rounds=2):
        assert_textbook(played, None)


def test_slora_has_diagnostics_once_it_sends_factors() -> None:
    sparse, *rest = play(algorithms.get("slora", sparse_rounds=1))
    assert_textbook(sparse, OPAQUE["slora"])
    for played in rest:
        assert_textbook(played, None)


def test_server_optimizer_counts_as_interference() -> None:
    plain = list(play(algorithms.get("rolora")))
    stepped = list(play(ServerStep(algorithms.get("rolora"), momentum(0.5))))
    for one, other in zip(plain, stepped, strict=True):
        assert_textbook(other, None)
        assert one.measured()["interference"] == pytest.approx(0, abs=1e-12)
        assert other.measured()["interference"] > 0.05  # type: ignore[operator]


# --- what the numbers mean --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [n for n in NAMES if (traits := algorithms.entry(n).traits).exact and traits.needs_factors]
)
def test_exact_methods_have_no_interference(name: str) -> None:
    measured = [p.measured()["interference"] for p in play(algorithms.get(name))]
    assert measured == pytest.approx([0] * len(measured), abs=1e-12)


@pytest.mark.parametrize("name", ["flexlora", "fedhm"])
def test_truncated_mean_is_never_worse_than_no_step(name: str) -> None:
    for played in play(algorithms.get(name), rounds=5):
        measured = played.measured()
        assert 1e-6 < measured["interference"] <= 1  # type: ignore[operator]
        truncated = measured["truncation_error"] * size(played.end)  # type: ignore[operator]
        assert truncated > 0


def test_mean_of_factors_loses_opposed_clients() -> None:
    """B = e, A = (1, 0) and B = -e, A = (0, 1): the mean of products is e (1, -1) / 2, the product of means 0."""
    algorithm = algorithms.get("fedit")
    one, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    start = {"m.A": zero.clone(), "m.B": 0 * one}
    start["m.A"][0, 0] = 1
    other = zero.clone()
    other[0, 1] = 1
    client_factors = {"a": {"m.A": start["m.A"], "m.B": one}, "b": {"m.A": other, "m.B": -one}}
    uploads = [Upload(Client(c, 1), p, 1.0) for c, p in client_factors.items()]
    before = algorithm.init(start, {}, Round(0, 1, 0, 2))
    after = algorithm.aggregate(before, uploads, Round(0, 1, 0, 2))
    sites = {"m": Site("m", "linear", (1, 2), 1, 3.0, 0.0)}
    measured = measure(algorithm, sites, before, after, uploads, Round(0, 1, 0, 2), start)
    assert measured == {
        "interference": pytest.approx(1),
        "truncation_error": pytest.approx(0, abs=1e-12),
        "drift_A": pytest.approx(math.sqrt(0.5)),
        "drift_B": None,  # B was zero
        "drift_whole": None,
        "angle_A": pytest.approx(math.sqrt(0.5)),
        "angle_B": None,
        "alignment_mean": None,  # the model did not move
        "alignment_min": None,
        "stable_rank": None,  # its change is still zero
        "update_stable_rank": None,
        "singular_values": {"m": [0.0]},
        "reason": None,
    }


@pytest.mark.parametrize("name", NAMES)
def test_round_without_steps_has_null_ratios(name: str) -> None:
    """Interference and alignment are relative to the update, which is zero."""
    for played in play(algorithms.get(name), steps=0, rounds=2):
        measured = played.measured()
        assert measured["reason"] == OPAQUE.get(name)
        for key in ("interference", "alignment_mean", "alignment_min"):
            assert measured[key] is None, key
        json.dumps(measured, allow_nan=False)


def test_idle_client_has_no_alignment() -> None:
    algorithm = algorithms.get("fedit")
    *_, played = play(algorithm)
    idle = replace(played.uploads[0], params=pick(played.before.params, down | up))
    moving = [replace(u, params=pick(u.params, down | up)) for u in played.uploads[1:]]
    uploads = [idle, *moving]
    after = algorithm.aggregate(played.before, uploads, played.round)
    measured = measure(algorithm, played.sites, played.before, after, uploads, played.round, played.initial)
    assert 0 < measured["alignment_min"] <= measured["alignment_mean"] <= 1  # type: ignore[operator]
    alone = [measure(algorithm, played.sites, played.before, after, [u], played.round, played.initial) for u in moving]
    cosines = [a["alignment_mean"] for a in alone]
    assert measured["alignment_mean"] == pytest.approx(sum(cosines) / len(cosines))  # type: ignore[arg-type]


def test_zero_factors_give_only_nulls() -> None:
    *_, played = play(algorithms.get("fedit"), rounds=1)
    zeros = {n: torch.zeros_like(t) for n, t in played.before.params.items()}
    before, uploads = replace(played.before, params=zeros), [replace(u, params=zeros) for u in played.uploads]
    measured = measure(played.algorithm, played.sites, before, before, uploads, played.round, played.initial)
    assert measured == {**dict.fromkeys(KEYS), "singular_values": {path: [0.0, 0.0] for path in played.sites}}


def test_small_interference_keeps_its_digits() -> None:
    """Updates of 1e-6 beside factors of order 1 leave a gap of order 1e-12, which a difference of squared norms
    could not see. The covariance of the factors gives it in closed form."""
    algorithm = algorithms.get("fedit")
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    start = {"m.A": draw(2, 9), "m.B": draw(8, 2)}
    dA, dB = draw(3, 2, 9), draw(3, 8, 2)
    step = 1e-6
    client_factors = [
        {"m.A": start["m.A"] + step * a, "m.B": start["m.B"] + step * b} for a, b in zip(dA, dB, strict=True)
    ]
    uploads = [Upload(Client(str(k), 1), params, 1.0) for k, params in enumerate(client_factors)]
    round = Round(0, 1, 0, 3)
    before = algorithm.init(start, {}, round)
    after = algorithm.aggregate(before, uploads, round)
    sites = {"m": Site("m", "linear", (8, 9), 2, 0.5, 0.0)}
    interference = measure(algorithm, sites, before, after, uploads, round, start)["interference"]
    covariance = ((dB - dB.mean(0)) @ (dA - dA.mean(0))).mean(0) * step**2
    update = (start["m.B"] @ dA.mean(0) + dB.mean(0) @ start["m.A"]) * step
    assert interference == pytest.approx(float(covariance.norm() / update.norm()), rel=1e-3)


# --- in a run ---------------------------------------------------------------------------------------------------


def population() -> Population:
    members = {}
    for k, name in enumerate(("ann", "bob", "cid")):
        g = torch.Generator().manual_seed(k)
        rows = []
        for _ in range(4 + 2 * k):
            body = torch.randint(4, tiny.VOCABULARY, (5,), generator=g).tolist()
            rows.append(TextExample((2, *body, 3), (body[0] + k) % 3, (0,) * 7))
        members[name] = Member(Client(name, len(rows)), tuple(rows), ())
    return Population(members, (), {})


def config(every: int | None = None) -> RunConfig:
    evaluation = {} if every is None else {"evaluation": {"diagnostics_every": every}}
    return load({"rounds": 4, "train": {"lr": 5e-3, "batch_size": 4, "local_epochs": 1}, **evaluation})


def simulated(name: str, every: int | None = None) -> Composed:
    module = tiny.bert()
    sites = tiny.sites(module, ("query", "intermediate.dense"), rank=3)
    network = AdaptedNetwork(module, sites, tiny.head_names(module))
    factors = tiny.factors(sites, 1, dtype=torch.float32)
    initial = {n: t if down(n) else 0 * t for n, t in factors.items()} | network.initial_head
    task = SequenceClassification(tiny.tokenizer(), ["text"], "label", ("a", "b", "c"), 32)
    return Composed(algorithms.get(name), network, task, population(), config(every), initial)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", every_method())
def test_diagnostics_change_no_bit_of_a_run(name: str) -> None:
    on, off = simulated(name, 1), simulated(name, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        records = [[s.run_round(t) for t in range(2)] for s in (on, off)]
    assert serialization.same(on.state, off.state)
    assert serialization.same(on.locals, off.locals)
    for record, plain in zip(*records, strict=True):
        measured = record.pop("diagnostics")
        assert timeless(record) == timeless(plain)
        assert measured["reason"] == OPAQUE.get(name)
        assert json.loads(json.dumps(measured, allow_nan=False)) == measured
        if measured["reason"] is None:
            assert measured["interference"] < (
                1e-3 if on.algorithm.traits.exact and on.algorithm.traits.needs_factors else 1
            )
            assert -1 <= measured["alignment_min"] <= measured["alignment_mean"] <= 1


@pytest.mark.parametrize(("every", "due"), [(None, [3]), (1, [0, 1, 2, 3]), (2, [1, 3]), (3, [2, 3]), (0, [])])
def test_diagnostics_follow_their_schedule(every: int | None, due: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads are kept in the rounds that are due, and in no others."""
    held = []
    hold = Exchange._hold

    def spy(self: Exchange, upload: Upload) -> None:
        hold(self, upload)
        held.append((self.setting.round.attempt, [u.client.id for u in self.held]))

    monkeypatch.setattr(Exchange, "_hold", spy)
    sim = simulated("rolora", every)
    records = [sim.run_round(t) for t in range(4)]
    assert [r["round"] for r in records if "diagnostics" in r] == due
    growing = (["ann"], ["ann", "bob"], ["ann", "bob", "cid"])
    assert held == [(attempt, names) for attempt in due for names in growing]


def test_uploads_beyond_the_limit_give_no_diagnostics(monkeypatch: pytest.MonkeyPatch) -> None:
    """The round holds no uploads, and its record says why."""
    sim = simulated("fedit", 1)
    sim.run_round(0)
    size = sum(t.numel() * t.element_size() for n, t in sim.state.params.items())
    monkeypatch.setattr(exchange, "HELD_BYTES", 3 * size)
    assert sim.run_round(1)["diagnostics"]["reason"] is None
    monkeypatch.setattr(exchange, "HELD_BYTES", 3 * size - 1)
    measured = sim.run_round(2)["diagnostics"]
    assert "MiB" in measured.pop("reason")
    assert {name: value for name, value in measured.items() if value} == {}


def test_diagnostics_failure_warns_and_is_recorded() -> None:
    """The round itself stands."""
    plain, undone = simulated("fedit", 1), simulated("fedit", 1)
    plain.run_round(0)
    fails = failing(diagnostics, "measure", RuntimeError("no convergence"))
    with fails, pytest.warns(RuntimeWarning, match="round 0 has no diagnostics: .*no convergence"):
        record = undone.run_round(0)
    assert record["diagnostics"] == {**dict.fromkeys(KEYS), "reason": "RuntimeError: no convergence"}
    assert serialization.same(plain.state, undone.state)


def test_nonfinite_factors_give_valid_json() -> None:
    *_, played = play(algorithms.get("fedit"), rounds=1)
    for value in (math.nan, math.inf):
        first = played.uploads[0]
        broken = [replace(first, params={n: torch.full_like(t, value) for n, t in first.params.items()})]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            diagnosed = diagnose(
                played.algorithm, played.sites, played.before, played.after, broken, played.round, played.initial
            )
        json.dumps(diagnosed, allow_nan=False)
        assert diagnosed["interference"] is None
