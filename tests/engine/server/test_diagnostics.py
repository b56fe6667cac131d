"""The diagnostics of a round against dense matrices, for every algorithm; and that they change nothing else."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import tiny
from composed import Composed
from rondo import algorithms
from rondo.algorithm import Algorithm, Client, Round, Shared, Upload
from rondo.algorithms.wrappers.local_head import LocalHead
from rondo.algorithms.wrappers.server_optimizer import ServerStep, momentum
from rondo.config import RunConfig, load
from rondo.data.population import Member, Population
from rondo.engine import serialization
from rondo.engine.server import diagnostics, exchange, rounds
from rondo.engine.server.diagnostics import KEYS, diagnose, measure
from rondo.models.adapted_layer import Site
from rondo.models.adapted_network import AdaptedNetwork
from rondo.params import Params, Role, add_client_axis, client_row, down, pick, role, up
from rondo.tasks.classification import SequenceClassification
from rondo.tasks.token_store import TextExample
from rondo.testing import LinearProblem, SgdTrainer

NAMES = algorithms.names()
OPAQUE = {
    "fedsa-lora": "clients keep B of their own, so the server does not know their models",
    "pfedloru": "clients keep pA, pB of their own, so the server does not know their models",
    "pfedlora": "clients keep pA, pB of their own, so the server does not know their models",
    "slora": "clients send S, which are not low-rank factors",
}
FROM_UPLOADS = ("interference", "truncation_error", "alignment_mean", "alignment_min")
TOLERANCE = 1e-10

# --- rounds on a small problem, and the textbook ----------------------------------------------------------------


@dataclass(frozen=True)
class Played:
    """A round: what :func:`measure` is given, and the same as dense matrices by module."""

    algorithm: Algorithm[Any]
    sites: Mapping[str, Site]
    before: Any
    after: Any
    uploads: Sequence[Upload]
    round: Round
    start: Mapping[str, np.ndarray]
    end: Mapping[str, np.ndarray]
    trained: Sequence[Mapping[str, np.ndarray]]
    """The models that the clients really had, from the trainer and not from their uploads."""
    products: Sequence[Mapping[str, np.ndarray]]
    """The same without the base's change."""
    factors: tuple[Params, Params]

    def measured(self) -> diagnostics.Diagnostics:
        return measure(self.algorithm, self.sites, self.before, self.after, self.uploads, self.round)


def play(
    algorithm: Algorithm[Any],
    *,
    ranks: Sequence[int | None] = (None, None, None, None),
    rounds: int = 3,
    steps: int = 3,
    partial: bool = False,
) -> Iterator[Played]:
    problem = LinearProblem.make(3, rank=2, clients=len(ranks))
    people = [replace(c, rank=r) for c, r in zip(problem.clients, ranks, strict=True)]
    sites = {p: Site(p, "linear", w.shape, problem.rank, w.scale, 0.0) for p, w in problem.weights.items()}
    now = algorithm.init(problem.params, problem.weights, Round(0, rounds, 0, len(people)))
    locals: dict[str, Params] = {}

    def dense(seen: Params, base: Any) -> dict[str, np.ndarray]:
        return {p: problem.delta(seen, base, p).numpy() for p in sites}

    def newcomer(of: Any, round: Round) -> tuple[Shared, Params]:
        shared = algorithm.broadcast(of, Client("newcomer", 0), round)
        return shared, algorithm.view(shared, algorithm.local_init(shared, Client("newcomer", 0)))

    for t in range(rounds):
        round = Round(t, rounds, 0, len(people))
        trained, products, uploads = [], [], []
        for client in people[t % 2 :: 2] if partial else people:
            shared = algorithm.broadcast(now, client, round)
            local = locals.get(client.id, algorithm.local_init(shared, client))
            trainer = SgdTrainer((client,), round, problem.loss, shared.base, steps)
            given = replace(shared, params=add_client_axis(shared.params))
            (upload,), kept = algorithm.client_update(given, add_client_axis(local), trainer)
            locals[client.id] = client_row(kept, 0)
            done = replace(shared, params={**shared.params, **client_row(trainer.fits[-1], 0)})
            seen = algorithm.view(done, locals[client.id])
            trained.append(dense(seen, shared.base))
            products.append(dense(seen, {}))
            uploads.append(upload)
        after = algorithm.aggregate(now, uploads, round)
        (sent, old), (next_sent, new) = newcomer(now, round), newcomer(after, replace(round, index=t + 1))
        gram = any(role(n) is Role.GRAM for n in sent.params)
        factors = (old, new) if gram else (sent.params, next_sent.params)
        start, end = dense(old, sent.base), dense(new, next_sent.base)
        yield Played(algorithm, sites, now, after, uploads, round, start, end, trained, products, factors)
        now = after


def size(matrices: Mapping[str, Any]) -> float:
    return math.sqrt(sum(float((np.asarray(m) ** 2).sum()) for m in matrices.values()))


def ratio(above: float, below: float) -> float | None:
    return above / below if below > 1e-14 else None


def textbook(played: Played) -> dict[str, float | None]:
    """Every number from dense matrices, as it is defined."""
    weights = [u.weight for u in played.uploads]
    paths = list(played.sites)

    def mean(of: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
        return {m: sum(w / sum(weights) * x[m] for w, x in zip(weights, of, strict=True)) for m in paths}  # type: ignore[misc]

    def less(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {m: a[m] - b[m] for m in paths}

    middle, products, step = mean(played.trained), mean(played.products), less(played.end, played.start)
    tails = {m: np.linalg.svd(products[m])[1][played.sites[m].rank :] for m in paths}
    cosines = []
    for own in played.trained:
        moved = less(own, played.start)
        if size(moved) > 1e-14 and size(step) > 1e-14:
            cosines.append(sum(float((moved[m] * step[m]).sum()) for m in paths) / size(moved) / size(step))
    drift = []
    for select in (down, up):
        old, new = (pick(f, lambda n, s=select: s(n)) for f in played.factors)  # type: ignore[misc]
        drift.append(ratio(size({n: new[n] - t for n, t in old.items()}), size(old)) if new else None)
    values = [np.linalg.svd(played.end[m])[1] for m in paths]
    stable = [float((v**2).sum() / v[0] ** 2) for v in values if v[0] > 1e-14]
    return {
        "interference": ratio(size(less(middle, played.end)), size(less(middle, played.start))),
        "truncation_error": ratio(size(tails), size(products)),
        "drift_A": drift[0],
        "drift_B": drift[1],
        "alignment_mean": sum(cosines) / len(cosines) if cosines else None,
        "alignment_min": min(cosines, default=None),
        "stable_rank": sum(stable) / len(stable) if stable else None,
    }


def assert_textbook(played: Played, reason: str | None) -> None:
    found, expected = played.measured(), textbook(played)
    assert tuple(found) == KEYS
    assert found["reason"] == reason
    for key, value in expected.items():
        if reason is not None and key in FROM_UPLOADS:
            assert found[key] is None, key
        else:
            assert found[key] == (None if value is None else pytest.approx(value, rel=TOLERANCE, abs=TOLERANCE)), key


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
def test_the_numbers_are_the_textbooks(name: str, fields: dict[str, Any], partial: bool) -> None:
    for played in play(algorithms.get(name, **fields), partial=partial):
        assert_textbook(played, OPAQUE.get(name))


@pytest.mark.parametrize("name", NAMES)
def test_a_local_head_makes_no_difference(name: str) -> None:
    for played in play(LocalHead(algorithms.get(name)), rounds=2):
        assert_textbook(played, OPAQUE.get(name))


@pytest.mark.parametrize("name", [n for n in NAMES if algorithms.load(n).client_ranks])
def test_clients_of_different_ranks(name: str) -> None:
    for played in play(algorithms.get(name), ranks=(1, 2, None, 1)):
        assert_textbook(played, OPAQUE.get(name))


def test_more_clients_than_the_layers_are_wide() -> None:
    for played in play(algorithms.get("fedit"), ranks=(None,) * 9, rounds=2):
        assert_textbook(played, None)


def test_the_rounds_in_which_slora_sends_factors() -> None:
    sparse, *rest = play(algorithms.get("slora", sparse_rounds=1))
    assert_textbook(sparse, OPAQUE["slora"])
    for played in rest:
        assert_textbook(played, None)


def test_a_server_optimizer_is_part_of_what_the_server_does() -> None:
    plain = list(play(algorithms.get("rolora")))
    stepped = list(play(ServerStep(algorithms.get("rolora"), momentum(0.5))))
    for one, other in zip(plain, stepped, strict=True):
        assert_textbook(other, None)
        assert one.measured()["interference"] == pytest.approx(0, abs=1e-12)
        assert other.measured()["interference"] > 0.05  # type: ignore[operator]


# --- what the numbers mean --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in NAMES if algorithms.entry(n).exact])
def test_an_exact_method_has_no_interference(name: str) -> None:
    assert all(p.measured()["interference"] == pytest.approx(0, abs=1e-12) for p in play(algorithms.get(name)))


@pytest.mark.parametrize("name", ["flexlora", "fedhm"])
def test_truncating_the_mean_is_never_worse_than_standing_still(name: str) -> None:
    for played in play(algorithms.get(name), rounds=5):
        found = played.measured()
        assert 1e-6 < found["interference"] <= 1  # type: ignore[operator]
        lost = found["truncation_error"] * size(played.end)  # type: ignore[operator]
        assert lost > 0


def test_clients_that_pull_apart_are_lost_on_the_mean_of_factors() -> None:
    """B = e, A = (1, 0) and B = -e, A = (0, 1): the mean of products is e (1, -1) / 2, the product of means 0."""
    algorithm = algorithms.get("fedit")
    one, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64)
    start = {"m.A": zero.clone(), "m.B": 0 * one}
    start["m.A"][0, 0] = 1
    other = zero.clone()
    other[0, 1] = 1
    sent = {"a": {"m.A": start["m.A"], "m.B": one}, "b": {"m.A": other, "m.B": -one}}
    uploads = [Upload(Client(c, 1), p, 1.0) for c, p in sent.items()]
    before = algorithm.init(start, {}, Round(0, 1, 0, 2))
    after = algorithm.aggregate(before, uploads, Round(0, 1, 0, 2))
    sites = {"m": Site("m", "linear", (1, 2), 1, 3.0, 0.0)}
    found = measure(algorithm, sites, before, after, uploads, Round(0, 1, 0, 2))
    assert found == {
        "interference": pytest.approx(1),
        "truncation_error": pytest.approx(0, abs=1e-12),
        "drift_A": pytest.approx(math.sqrt(0.5)),
        "drift_B": None,  # it was zero
        "alignment_mean": None,  # the model did not move
        "alignment_min": None,
        "stable_rank": None,  # nor has it ever
        "reason": None,
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_round_without_a_step_has_no_update_to_relate_to(name: str) -> None:
    for played in play(algorithms.get(name), steps=0, rounds=2):
        found = played.measured()
        assert found["reason"] == OPAQUE.get(name)
        for key in ("interference", "alignment_mean", "alignment_min"):
            assert found[key] is None, key
        assert all(v is None or isinstance(v, str) or math.isfinite(v) for v in found.values())


def test_a_client_that_did_not_move_has_no_direction() -> None:
    algorithm = algorithms.get("fedit")
    *_, played = play(algorithm)
    idle = replace(played.uploads[0], params=pick(played.before.params, down | up))
    moving = [replace(u, params=pick(u.params, down | up)) for u in played.uploads[1:]]
    uploads = [idle, *moving]
    after = algorithm.aggregate(played.before, uploads, played.round)
    found = measure(algorithm, played.sites, played.before, after, uploads, played.round)
    assert 0 < found["alignment_min"] <= found["alignment_mean"] <= 1  # type: ignore[operator]
    alone = [measure(algorithm, played.sites, played.before, after, [u], played.round) for u in moving]
    cosines = [a["alignment_mean"] for a in alone]
    assert found["alignment_mean"] == pytest.approx(sum(cosines) / len(cosines))  # type: ignore[arg-type]


def test_factors_of_zeros_give_nothing_but_nulls() -> None:
    *_, played = play(algorithms.get("fedit"), rounds=1)
    nothing = {n: torch.zeros_like(t) for n, t in played.before.params.items()}
    before, uploads = replace(played.before, params=nothing), [replace(u, params=nothing) for u in played.uploads]
    assert measure(played.algorithm, played.sites, before, before, uploads, played.round) == dict.fromkeys(KEYS)


def test_small_gaps_keep_their_digits() -> None:
    """Updates of a millionth: the gap is the square of that beside factors of order 1, which a difference of squared
    norms could not see. The covariance of the factors gives it in closed form."""
    algorithm = algorithms.get("fedit")
    g = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    start = {"m.A": draw(2, 9), "m.B": draw(8, 2)}
    dA, dB = draw(3, 2, 9), draw(3, 8, 2)
    step = 1e-6
    sent = [{"m.A": start["m.A"] + step * a, "m.B": start["m.B"] + step * b} for a, b in zip(dA, dB, strict=True)]
    uploads = [Upload(Client(str(k), 1), params, 1.0) for k, params in enumerate(sent)]
    round = Round(0, 1, 0, 3)
    before = algorithm.init(start, {}, round)
    after = algorithm.aggregate(before, uploads, round)
    sites = {"m": Site("m", "linear", (8, 9), 2, 0.5, 0.0)}
    found = measure(algorithm, sites, before, after, uploads, round)["interference"]
    covariance = ((dB - dB.mean(0)) @ (dA - dA.mean(0))).mean(0) * step**2
    update = (start["m.B"] @ dA.mean(0) + dB.mean(0) @ start["m.A"]) * step
    assert found == pytest.approx(float(covariance.norm() / update.norm()), rel=1e-3)


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


@pytest.mark.parametrize("name", NAMES)
def test_a_run_has_the_same_bits_with_and_without(name: str) -> None:
    on, off = simulated(name, 1), simulated(name, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        records = [[s.run_round(t) for t in range(2)] for s in (on, off)]
    assert serialization.same(on.state, off.state)
    assert serialization.same(on.locals, off.locals)
    for with_them, without in zip(*records, strict=True):
        found = with_them.pop("diagnostics")
        assert {**with_them, "train_seconds": 0} == {**without, "train_seconds": 0}
        assert found["reason"] == OPAQUE.get(name)
        assert json.loads(json.dumps(found, allow_nan=False)) == found
        if found["reason"] is None:
            assert found["interference"] < (1e-3 if on.algorithm.exact else 1)
            assert -1 <= found["alignment_min"] <= found["alignment_mean"] <= 1


@pytest.mark.parametrize(("every", "due"), [(None, [3]), (1, [0, 1, 2, 3]), (2, [1, 3]), (3, [2, 3]), (0, [])])
def test_they_come_every_so_many_rounds_and_no_upload_is_kept_else(
    every: int | None, due: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    noted = exchange.noted

    def spy(uploads: Any, into: list[Upload]) -> Iterator[Upload]:
        kept.append(into)
        return noted(uploads, into)

    monkeypatch.setattr(rounds, "noted", spy)
    sim = simulated("rolora", every)
    records = [sim.run_round(t) for t in range(4)]
    assert [r["round"] for r in records if "diagnostics" in r] == due
    assert [[u.client.id for u in each] for each in kept] == [["ann", "bob", "cid"]] * len(due)


def test_a_round_with_too_much_to_hold_holds_nothing_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    sim = simulated("fedit", 1)
    sim.run_round(0)
    size = sum(t.numel() * t.element_size() for n, t in sim.state.params.items())
    monkeypatch.setattr(exchange, "HELD_BYTES", 3 * size)
    assert sim.run_round(1)["diagnostics"]["reason"] is None
    monkeypatch.setattr(exchange, "HELD_BYTES", 3 * size - 1)
    found = sim.run_round(2)["diagnostics"]
    assert "MiB" in found.pop("reason")
    assert not any(found.values())


def test_a_failure_is_warned_of_and_recorded_and_the_round_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("no convergence")

    plain, failing = simulated("fedit", 1), simulated("fedit", 1)
    plain.run_round(0)
    monkeypatch.setattr(diagnostics, "measure", fails)
    with pytest.warns(RuntimeWarning, match="round 0 has no diagnostics: .*no convergence"):
        record = failing.run_round(0)
    assert record["diagnostics"] == {**dict.fromkeys(KEYS), "reason": "RuntimeError: no convergence"}
    assert serialization.same(plain.state, failing.state)


def test_factors_that_are_not_finite_give_a_record_that_is_json() -> None:
    *_, played = play(algorithms.get("fedit"), rounds=1)
    for bad in (math.nan, math.inf):
        first = played.uploads[0]
        broken = [replace(first, params={n: torch.full_like(t, bad) for n, t in first.params.items()})]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            found = diagnose(played.algorithm, played.sites, played.before, played.after, broken, played.round)
        json.dumps(found, allow_nan=False)
        assert found["interference"] is None
