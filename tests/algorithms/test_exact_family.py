"""The exact family beyond the laws: dense forms, clients' ranks, options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rondo import algorithms
from rondo.algorithm import Algorithm, Client, Fit, Round, Shared, Upload
from rondo.algorithms.factors.fedloru import FedLoRU
from rondo.algorithms.factors.fedmomentum import FedMomentum
from rondo.algorithms.factors.fedrot_lora import FedRotLoRA
from rondo.algorithms.factors.fedsvd import FedSVD
from rondo.algorithms.factors.flexlora import FlexLoRA
from rondo.algorithms.factors.hetlora import HetLoRA
from rondo.algorithms.factors.raflora import RaFLoRA
from rondo.lowrank import mean_product
from rondo.params import Params, add_client_axis, cut_rank, pad_rank
from rondo.testing import SgdTrainer, TwoLayers
from rondo.testing.laws import LAWS
from rondo.testing.run import LawBroken, Run

RANKED = [
    n
    for n in algorithms.names()
    if algorithms.entry(n).traits.client_ranks and n not in ("lora-a2", "mfedloru", "fslora", "fed-plora")
]
"""LoRA-A2 and mFedLoRU are left out: they send every client the whole factors (see test_own_ranks.py)."""


def uploads(seed: int, ranks: tuple[int, ...], out: int = 9, inp: int = 7) -> list[Upload]:
    """One upload per client: a module's factors of the client's rank and a head, with unequal weights."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    return [
        Upload(Client(f"c{k}", 3 + k, r), {"m.A": normal(r, inp), "m.B": normal(out, r), "head:w": normal(2)}, 3.0 + k)
        for k, r in enumerate(ranks)
    ]


def start(algorithm: Algorithm[Any], rank: int, out: int = 9, inp: int = 7, scale: float = 1.75) -> Any:
    from rondo.algorithm import Weight

    g = torch.Generator().manual_seed(99)
    matrix = torch.randn(out, inp, generator=g, dtype=torch.float64)
    params = {
        "m.A": torch.randn(rank, inp, generator=g, dtype=torch.float64),
        "m.B": torch.zeros(out, rank, dtype=torch.float64),
        "head:w": torch.zeros(2, dtype=torch.float64),
    }
    return algorithm.init(params, {"m": Weight((out, inp), scale, lambda: matrix)}, Round(0, 4, 0, 3))


def dense_mean(received: list[Upload]) -> Tensor:
    mass = sum(u.weight for u in received)
    return sum((u.weight / mass * u.params["m.B"] @ u.params["m.A"] for u in received), torch.zeros(9, 7).double())


@settings(max_examples=30)
@given(st.integers(0, 2**31), st.lists(st.integers(1, 4), min_size=1, max_size=4), st.sampled_from(["up", "both"]))
def test_flexlora_is_the_dense_truncation(seed: int, ranks: list[int], split: Any) -> None:
    algorithm = FlexLoRA(split)
    received = uploads(seed, tuple(ranks))
    state = algorithm.aggregate(start(algorithm, 4), received, Round(0, 4, 0, 3))
    u, s, vh = torch.linalg.svd(dense_mean(received))
    for rank in range(1, 5):
        factors = cut_rank(state.params, rank)
        best = (u[:, :rank] * s[:rank]) @ vh[:rank]
        torch.testing.assert_close(factors["m.B"] @ factors["m.A"], best, rtol=0, atol=1e-10)
    if split == "both":
        sizes = state.params["m.A"].norm(dim=1), state.params["m.B"].norm(dim=0)
        torch.testing.assert_close(sizes[0][: sum(ranks)], sizes[1][: sum(ranks)], rtol=1e-9, atol=1e-9)
    assert bool((state.params["m.A"].norm(dim=1) > 0).all())  # a row of zeros beside a column of zeros never moves


@pytest.mark.parametrize(
    "algorithm", [FlexLoRA("up"), FlexLoRA("both"), RaFLoRA("up"), RaFLoRA("both"), FedMomentum()], ids=repr
)
def test_factors_of_zero_products_can_learn(algorithm: Algorithm[Any]) -> None:
    """A is never zero, so a step from B = 0 can move."""
    zero = [replace(u, params={**u.params, "m.B": torch.zeros(9, 2).double()}) for u in uploads(0, (2, 2))]
    state = algorithm.aggregate(start(algorithm, 2), zero, Round(0, 4, 0, 3))
    assert not state.params["m.B"].any()
    assert bool((state.params["m.A"].norm(dim=1) > 0.1).all())


@pytest.mark.parametrize("name", ["flora", "fedex-lora", "fedmomentum"])
@pytest.mark.parametrize("clients", [1, 2, 6])
def test_base_takes_the_change_that_factors_lose(name: str, clients: int) -> None:
    algorithm = algorithms.get(name)
    received = uploads(5, (2,) * clients)
    state = algorithm.aggregate(start(algorithm, 2), received, Round(0, 4, 0, 3))
    change = state.base["m"]
    factors = state.params["m.B"] @ state.params["m.A"]
    torch.testing.assert_close(
        change.factors().dense() + 1.75 * factors, 1.75 * dense_mean(received), rtol=0, atol=1e-10
    )
    largest = {"flora": 2 * clients, "fedex-lora": 2 * max(1, clients - 1), "fedmomentum": min(2 * clients, 7) - 2}
    rank = largest[name]
    assert (change.dense is None) == (rank * (9 + 7) <= 9 * 7)


@pytest.mark.parametrize("name", RANKED)
def test_clients_of_different_ranks_take_part(name: str) -> None:
    algorithm = algorithms.get(name)
    problem = TwoLayers.make(3, rank=4)
    clients = [replace(c, rank=r) for c, r in zip(problem.clients, (1, 4, 2), strict=True)]
    state = algorithm.init(problem.params, problem.weights, Round(0, 3, 0, 3))
    for index in range(3):
        current, received = Round(index, 3, 0, 3), []
        deltas, mass = {}, sum(c.num_examples for c in clients)
        for client in clients:
            shared = algorithm.broadcast(state, client, current)
            assert shared.params["first.A"].shape == (client.rank, 5)
            assert shared.params["second.B"].shape == (7, client.rank)
            trainer = SgdTrainer((client,), current, problem.loss, shared.base)
            given, _ = algorithm.client_update(
                replace(shared, params={n: t.unsqueeze(0) for n, t in shared.params.items()}), {}, trainer
            )
            fit = {n: t[0] for n, t in trainer.fits[-1].items()}
            for path in problem.weights:
                deltas[path] = deltas.get(path, 0) + client.num_examples / mass * problem.delta(fit, shared.base, path)
            received.extend(given)
            assert received[-1].params["first.A"].shape == (client.rank, 5)
        state = algorithm.aggregate(state, received, current)
        whole = algorithm.broadcast(state, Client("new", 1), Round(index + 1, 3, 0, 3))
        seen = algorithm.view(whole, {})
        assert {n: t for n, t in seen.items() if not t.isfinite().all()} == {}
        if algorithm.traits.exact:
            for path in problem.weights:
                torch.testing.assert_close(problem.delta(seen, whole.base, path), deltas[path], rtol=0, atol=1e-10)


def test_padding_keeps_the_product() -> None:
    (upload,) = uploads(1, (2,))
    like: Params = {"m.A": torch.zeros(5, 7), "m.B": torch.zeros(9, 5), "head:w": torch.zeros(2)}
    wide = pad_rank(upload.params, like)
    assert {n: t.shape for n, t in wide.items()} == {n: t.shape for n, t in like.items()}
    torch.testing.assert_close(wide["m.B"] @ wide["m.A"], upload.params["m.B"] @ upload.params["m.A"])


def test_upload_rank_above_the_servers_is_refused() -> None:
    algorithm = algorithms.get("fedit")
    with pytest.raises(ValueError, match=r"m\.A is"):
        algorithm.aggregate(start(algorithm, 2), uploads(1, (2, 3)), Round(0, 4, 0, 3))


def test_hetlora_weighs_by_the_norm_of_the_change() -> None:
    """The norm of the weights' change over all modules, each with its own scale."""
    run = Run(HetLoRA(), 0)
    assert len({w.scale for w in run.problem.weights.values()}) == 2
    for outcome in run.step(0):
        changes = [run.problem.delta(outcome.upload.params, {}, path) for path in run.problem.weights]
        norm = float(torch.cat([c.flatten() for c in changes]).norm())
        assert outcome.upload.weight == pytest.approx(norm, rel=1e-12)


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_hetlora_prunes_by_the_tail_of_the_change(scale: float) -> None:
    """The tail of one module fades and that of the other grows. The sum of both decides, each with its scale."""

    class Moved:
        clients, round, lr = (Client("c", 1),), Round(1, 4, 0, 1), 0.1

        def fit(self, params: Any, **options: Any) -> Fit:
            factors = {"first.B": 0.5, "second.B": 2.0}
            unit = torch.ones(1)
            return Fit({n: t * factors.get(n, 1.0) for n, t in params.items()}, unit, unit, unit)

        def upload(self, params: Any, weight: Any = None) -> tuple[Upload, ...]:
            return (Upload(self.clients[0], {n: t[0] for n, t in params.items()}, float(weight)),)

    problem, algorithm = TwoLayers.make(0), HetLoRA(prune=True)
    ones = {n: torch.ones_like(t) for n, t in problem.params.items()}
    weights = {"first": replace(problem.weights["first"], scale=scale), "second": problem.weights["second"]}
    shared = algorithm.broadcast(algorithm.init(ones, weights, Moved.round), Moved.clients[0], Moved.round)
    local = add_client_axis(algorithm.local_init(shared, Moved.clients[0]))
    # |B_tail| |A_tail| is sqrt(7 * 5) and sqrt(7 * 7), the second scale 0.5.
    fades = scale * 35**0.5 * 0.5 > 0.5 * 7.0
    _, kept = algorithm.client_update(replace(shared, params=add_client_axis(shared.params)), local, Moved())
    assert [int(r) for r in kept.values()] == ([1, 1] if fades else [2, 2])
    assert fades == (scale == 8.0)


def test_hetlora_penalty_shrinks_the_tail() -> None:
    tails = []
    for penalty in (0.0, 0.5):
        run = Run(HetLoRA(penalty=penalty, keep=0.5), 0, steps=20)
        for index in range(3):
            run.step(index)
        tails.append(tail(run.state.params, 1))
    assert tails[1] < 0.7 * tails[0]


def ranks_left(run: Run) -> dict[str, list[int]]:
    return {c: [int(t) for t in kept.values()] for c, kept in run.locals.items()}


def tail(params: Params, first: int) -> float:
    scales = {path: weight.scale for path, weight in TwoLayers.make(0).weights.items()}
    return float(
        sum(s * params[f"{p}.B"][:, first:].norm() * params[f"{p}.A"][first:].norm() for p, s in scales.items())
    )


def test_hetlora_prunes_a_fading_tail_for_good() -> None:
    """A client halves its rank when training has made its tail smaller, and uploads zeros there from then on."""
    run = Run(HetLoRA(penalty=2.0, keep=0.5, prune=True), 0, steps=10)
    seen = []
    for index in range(5):
        before, start = ranks_left(run), dict(run.state.params)
        outcomes = run.step(index)
        after = ranks_left(run)
        for outcome in outcomes:
            client, uploaded = outcome.upload.client.id, outcome.upload.params
            rank = before.get(client, [2, 2])[0]
            if rank == 2 and after[client] == [1, 1]:
                assert tail(start, 1) > 0
            if rank == 2 and after[client] == [2, 2]:
                assert tail(uploaded, 1) >= tail(start, 1)
            assert tail(uploaded, after[client][0]) == 0
            assert after[client][0] <= rank
        seen.append(after)
    assert {tuple(r) for r in seen[0].values()} == {(2, 2)}  # B starts at zero, so no tail is smaller than before
    assert [1, 1] in seen[-1].values()


def test_hetlora_keeps_a_tail_that_stays_as_it_is() -> None:
    """Only a smaller tail is given up: not one that is zero and stays so, nor one that no step has changed."""
    run = Run(HetLoRA(prune=True), 0, steps=0)
    run.step(0)
    assert tail(run.state.params, 1) == 0
    run.state = replace(run.state, params={n: torch.ones_like(t) for n, t in run.state.params.items()})
    run.step(1)
    assert ranks_left(run) == {c.id: [2, 2] for c in run.clients}


def test_hetlora_without_pruning_keeps_nothing() -> None:
    run = Run(HetLoRA(penalty=2.0), 0)
    run.step(0)
    assert {n: kept for n, kept in run.locals.items() if kept != {}} == {}


def test_hetlora_masks_ranks_per_client_of_a_cohort() -> None:
    algorithm, run = HetLoRA(prune=True), Run(HetLoRA(prune=True), 1)
    run.step(0)
    names = list(run.locals["client-0"])
    for client, rank in zip(run.clients, (1, 2, 1), strict=True):
        run.locals[client.id] = dict.fromkeys(names, torch.tensor([rank], dtype=torch.int32))
    together = run.train(run.clients, 1)
    for outcome, rank in zip(together, (1, 2, 1), strict=True):
        assert (tail(outcome.upload.params, 1) == 0) == (rank == 1)
        alone = run.train([outcome.upload.client], 1)[0]
        for n, t in alone.upload.params.items():
            torch.testing.assert_close(outcome.upload.params[n], t, rtol=1e-12, atol=1e-12)
    shared = run.shared(run.clients[0], 1)
    assert tail(algorithm.view(shared, run.locals["client-0"]), 1) == 0


def fair_loss(objective: str, penalty: float, received: list[Upload], b: Tensor) -> float:
    """The loss that LoRA-FAIR's server minimises over B, from dense products."""
    mass = sum(u.weight for u in received)
    mean_a, mean_b = (sum(u.weight / mass * u.params[f"m.{part}"] for u in received) for part in "AB")
    target, product = dense_mean(received), b @ mean_a
    if objective == "frobenius":
        return float((target - product).square().sum() + penalty * (b - mean_b).square().sum())
    return float(penalty * (b - mean_b).norm() - (target * product).sum() / target.norm() / product.norm())


@pytest.mark.parametrize("objective", ["cosine", "frobenius"])
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4), st.sampled_from([1e-3, 1e-2, 0.1, 1.0]), st.floats(-2, 2))
def test_lora_fair_finds_the_least_loss(objective: str, seed: int, clients: int, penalty: float, size: float) -> None:
    """No other B in any direction, near or far, is better; the mean itself is no better either."""
    algorithm = algorithms.get("lora-fair", objective=objective, penalty=penalty)
    common = uploads(seed + 1, (2,))[0].params
    received = [
        replace(
            u, params={n: (common[n] + t / 2) * 10**size if n == "m.B" else common[n] + t for n, t in u.params.items()}
        )
        for u in uploads(seed, (2,) * clients)
    ]
    state = algorithm.aggregate(start(algorithm, 2), received, Round(0, 4, 0, 3))
    mass = sum(u.weight for u in received)
    mean_b = sum((u.weight / mass * u.params["m.B"] for u in received), torch.zeros(9, 2).double())
    found = state.params["m.B"]
    least = fair_loss(objective, penalty, received, found)
    assert least <= fair_loss(objective, penalty, received, mean_b) + 1e-12
    g = torch.Generator().manual_seed(seed)
    for exponent in range(-6, 2):
        other = found + torch.randn(found.shape, generator=g).double() * 10.0**exponent * 10**size
        assert fair_loss(objective, penalty, received, other) >= least - 1e-9 * max(1.0, abs(least))


@pytest.mark.parametrize("objective", ["cosine", "frobenius"])
@pytest.mark.parametrize("value", [0.0, 1e-38, 1e12, 3e38])
def test_lora_fair_of_extreme_uploads_is_finite(objective: str, value: float) -> None:
    """Factors of equal entries have rank 1, so A A^T is singular; at 1e12 a penalty of 0.01 is lost beside it."""
    algorithm = algorithms.get("lora-fair", objective=objective)
    ordinary = uploads(0, (2, 2))
    extreme = [replace(u, params={n: torch.full_like(t, value) for n, t in u.params.items()}) for u in ordinary]
    opposed = [extreme[0], replace(extreme[1], params={n: -t for n, t in extreme[1].params.items()})]
    for received in (extreme, [ordinary[0], extreme[1]], opposed, extreme[:1]):
        state = algorithm.aggregate(start(algorithm, 2), received, Round(0, 4, 0, 3))
        assert {n: t for n, t in state.params.items() if not t.isfinite().all()} == {}


FIELDS: list[Algorithm[Any]] = [
    FlexLoRA("both"),
    algorithms.get("federa", aggregation="product"),
    FedSVD(period=2),
    HetLoRA(penalty=0.1, keep=0.5),
    HetLoRA(penalty=0.1, keep=0.5, prune=True),
    FedLoRU(tau=1),
    FedLoRU(tau=2),
    algorithms.get("pfedloru", tau=1),
    algorithms.get("lora-fair", penalty=1e-4),
    algorithms.get("lora-fair", objective="frobenius", penalty=1.0),
]


@pytest.mark.parametrize(
    "algorithm", [pytest.param(a, marks=() if i % 3 == 1 else pytest.mark.slow) for i, a in enumerate(FIELDS)], ids=str
)
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.sweep(5)
def test_options_obey_the_laws(algorithm: Algorithm[Any], law: str) -> None:
    if (law == "exactness" and not algorithm.traits.exact) or (law == "raw sum" and not algorithm.linear):
        return
    if law == "zero steps" and isinstance(algorithm, HetLoRA) and algorithm.prune:
        return  # a client that has pruned sends smaller factors, which are padded with zeros
    LAWS[law](algorithm, 0)  # raises LawBroken


def test_momentum_restart_moves_the_model_by_the_factors() -> None:
    algorithm = FedLoRU(tau=1, restart="momentum")
    with pytest.raises(LawBroken):
        LAWS["zero steps"](algorithm, 0)
    run = Run(algorithm, 0)
    run.step(0)
    before = {p: 1.0 * run.model(run.clients[0], 1)[p] for p in run.problem.weights}
    run.steps = 0
    factors = {p: run.problem.delta(run.state.params, {}, p) for p in run.problem.weights}
    run.step(1)
    for path, change in run.model(run.clients[0], 2).items():
        if path in factors:
            torch.testing.assert_close(change, before[path] + factors[path], rtol=0, atol=1e-12)


def test_rank_of_the_whole_update_grows() -> None:
    run = Run(FedLoRU(tau=1), 0)
    for index in range(3):
        run.step(index)
        rank = int(torch.linalg.matrix_rank(run.model(run.clients[0], index + 1)["second"]))
        assert rank == min(7, 2 * (index + 1))


def test_mean_of_products_is_one_stack() -> None:
    received = uploads(4, (1, 3, 2))
    stack = mean_product(
        [u.params["m.B"] for u in received], [u.params["m.A"] for u in received], [u.weight for u in received]
    )
    assert stack.rank == 6
    torch.testing.assert_close(stack.dense(), dense_mean(received), rtol=0, atol=1e-12)


def test_slots_of_one_client_do_not_shrink_in_raflora() -> None:
    """Four clients agree on one slot, and one of them has a second, of which FlexLoRA's mean keeps a quarter."""
    slots = torch.eye(4).double()
    received = [
        Upload(Client(f"c{k}", 3, rank), {"m.A": slots[:rank], "m.B": slots[:, :rank]}, 1.0)
        for k, rank in enumerate((2, 1, 1, 1))
    ]
    for algorithm, second in ((FlexLoRA(), 0.25), (RaFLoRA(), 1.0)):
        params = algorithm.aggregate(start(algorithm, 2, 4, 4), received, Round(0, 4, 0, 4)).params
        expected = torch.diag(torch.tensor([1.0, second, 0.0, 0.0]).double())
        torch.testing.assert_close(params["m.B"] @ params["m.A"], expected)


@pytest.mark.parametrize("round", [1, 2])
def test_a_whole_rotation_brings_the_factor_nearest(round: int) -> None:
    """FedRot-LoRA with strength 1 takes a rotated copy of the broadcast factors back to them; without steps the model
    stays the same in any case."""
    g = torch.Generator().manual_seed(round)
    a, b = torch.randn(2, 7, generator=g).double(), torch.randn(9, 2, generator=g).double()
    turn = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    algorithm = FedRotLoRA(1.0)

    class Turned(SgdTrainer):
        def fit_with(self, params: Params, options: Any) -> Fit:
            fit = super().fit_with(params, options)
            return replace(fit, params={**fit.params, "m.A": turn.mT @ a[None], "m.B": b[None] @ turn})

    client = Client("c0", 3)
    trainer = Turned((client,), Round(round, 4, 0, 1), lambda client, p, base: (p["m.A"] * p["m.A"]).sum())
    (upload,), _ = algorithm.client_update(Shared(add_client_axis({"m.A": a, "m.B": b})), {}, trainer)
    torch.testing.assert_close(dict(upload.params), {"m.A": a, "m.B": b}, rtol=1e-12, atol=1e-12)
