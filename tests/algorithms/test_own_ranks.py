"""LoRA-A2, mFedLoRU, SLoRA, pFedLoRA and FedHM beyond the laws: clients' ranks, stages, dense forms."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from methods import every_method
from rondo import algorithms
from rondo.algorithm import Algorithm, Client, Round, Upload
from rondo.params import head, module_of, pick, role
from rondo.testing import LAWS, SgdTrainer, TwoLayers
from rondo.testing.run import LawBroken, Run

PATHS = ("first", "second")
NESTED = ("Ad", "Au", "Bd", "Bu")


@pytest.fixture(params=[1, 2])
def rank(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """The rank of every client in the laws' problem; the server's is 3."""
    make = TwoLayers.make

    def ranked(seed: int, **options: Any) -> TwoLayers:
        problem = make(seed, rank=3, **options)
        return replace(problem, clients=tuple(replace(c, rank=request.param) for c in problem.clients))

    monkeypatch.setattr(TwoLayers, "make", staticmethod(ranked))
    return request.param  # type: ignore[no-any-return]


RANK_2 = pytest.mark.parametrize("rank", [pytest.param(1, marks=pytest.mark.slow), 2], indirect=True)
"""Rank 1 in the slow tests only."""


@RANK_2
@pytest.mark.parametrize(
    "name",
    every_method(
        ["lora-a2", "mfedloru", "fedhm", "flexlora", "raflora", "fslora", "fed-plora", "fedit"],
        ["lora-a2", "fslora", "fed-plora", "fedhm"],
    ),
)
@pytest.mark.parametrize("law", [n for n in LAWS if n not in ("consensus", "zero steps", "exactness", "raw sum")])
@pytest.mark.sweep(4)
def test_laws_hold_for_clients_with_a_rank(name: str, law: str, rank: int) -> None:
    if (name, law, rank) == ("lora-a2", "first round learns", 1):
        pytest.skip("all slots may be of one layer")
    LAWS[law](algorithms.get(name), 0)  # raises LawBroken


@pytest.mark.parametrize("name", ["lora-a2", "mfedloru"])
@pytest.mark.parametrize("law", ["consensus", "zero steps"])
def test_uncut_factors_obey_consensus_and_zero_steps(name: str, law: str, rank: int) -> None:
    LAWS[law](algorithms.get(name), 0)


def test_lora_a2_stays_exact(rank: int) -> None:
    LAWS["exactness"](algorithms.get("lora-a2"), 0)


# FSLoRA


def test_fslora_without_ranks_is_fedit() -> None:
    fslora, fedit = Run(algorithms.get("fslora"), 0), Run(algorithms.get("fedit"), 0)
    for index in range(3):
        for run in (fslora, fedit):
            run.step(index)
        for name, tensor in fslora.state.params.items():
            torch.testing.assert_close(tensor, fedit.state.params[name], rtol=0, atol=0)


def test_fslora_draws_slots_by_client_round_and_module(rank: int) -> None:
    """Every slot comes up as often as any other, and a client that is asked again draws the same."""
    run, drawn = Run(algorithms.get("fslora"), 0), Counter[tuple[int, ...]]()
    for index in range(40):
        for first, again in zip(fits(run, index), fits(run, index), strict=True):
            for path in PATHS:
                slots = tuple(first.params[f"{path}.I"].tolist())
                assert slots == tuple(again.params[f"{path}.I"].tolist())
                drawn[slots] += 1
    assert set(drawn) == set(combinations(range(3), rank))
    assert min(drawn.values()) > 55  # of 40 rounds, 3 clients, 2 modules and 3 choices, 80 expected


# LoRA-A2


def fits(run: Run, index: int) -> list[Upload]:
    return [run.train([c], index)[0].upload for c in run.clients]


def test_lora_a2_uploads_the_best_slots(rank: int) -> None:
    """Slots compete over all modules together."""
    run = Run(algorithms.get("lora-a2"), 0)
    for index, part in ((0, "B"), (1, "A")):
        other = "A" if part == "B" else "B"
        for client in run.clients:
            shared = run.shared(client, index)
            probe = run.train([replace(client, rank=None)], index)  # all slots, for comparison
            upload = run.train([client], index)[0].upload
            assert set(pick(upload.params, lambda n: n.endswith((".A", ".B")))) == {f"{p}.{part}" for p in PATHS}
            kept = {p: upload.params[f"{p}.I"].tolist() for p in PATHS}
            assert sum(map(len, kept.values())) == rank * len(PATHS)
            for p in PATHS:
                assert kept[p] == sorted(set(kept[p]))
                assert upload.params[f"{p}.{part}"].shape[1 if part == "B" else 0] == len(kept[p])
            # The scores of one full-batch step; its gradient is by finite differences of the whole loss.
            step = 1e-6
            scores = {}
            for p in PATHS:
                tensor = shared.params[f"{p}.{part}"]
                gradient = torch.zeros_like(tensor)
                for i in range(tensor.numel()):
                    ends = []
                    for sign in (1, -1):
                        moved = tensor.clone().flatten()
                        moved[i] += sign * step
                        seen = {**shared.params, f"{p}.{part}": moved.view(tensor.shape)}
                        ends.append(run.problem.loss(client.id, seen, {}))
                    gradient.view(-1)[i] = (ends[0] - ends[1]) / (2 * step)
                along = (0, 1) if part == "B" else (1, 0)
                slot_scores = gradient.norm(dim=along[0]) * shared.params[f"{p}.{other}"].norm(dim=along[1])
                scores |= {(p, slot): float(value) for slot, value in enumerate(slot_scores)}
            best = sorted(scores, key=lambda s: -scores[s])[: rank * len(PATHS)]
            assert {(p, slot) for p in PATHS for slot in kept[p]} == set(best)
            assert len(probe) == 1
        run.step(index)


def test_slots_kept_by_no_client_keep_their_float32_bits(rank: int) -> None:
    run = Run(algorithms.get("lora-a2"), 0)
    for index in range(3):
        uploads = fits(run, index)
        run.state = replace(run.state, params={n: t.float() for n, t in run.state.params.items()})
        narrow = [
            replace(u, params={n: t.float() if t.is_floating_point() else t for n, t in u.params.items()})
            for u in uploads
        ]
        after = run.algorithm.aggregate(run.state, narrow, run.round(index))
        for p in PATHS:
            name = next(n for n in uploads[0].params if n in (f"{p}.A", f"{p}.B"))
            axis = 1 if name.endswith("B") else 0
            union = {int(i) for u in uploads for i in u.params[f"{p}.I"]}
            for slot in range(3):
                same = run.state.params[name].select(axis, slot).equal(after.params[name].select(axis, slot))
                assert same == (slot not in union)
        run.state = replace(after, params={n: t.double() for n, t in after.params.items()})


def test_decay_does_not_reach_unkept_slots(rank: int) -> None:
    """A trainer may return a factor that moved where no gradient went; the upload leaves these moves out."""
    algorithm = algorithms.get("lora-a2")
    run = Run(algorithm, 0)
    run.step(0)
    client = run.clients[0]
    shared = run.shared(client, 2)

    class Decaying:
        clients, round, lr = (client,), run.round(2), 0.1

        def fit(self, params: Any, **options: Any) -> Any:
            from rondo.algorithm import Fit

            unit = torch.ones(1)
            return Fit({n: 0.9 * t if options["train"](n) else t for n, t in params.items()}, unit, unit, unit)

        def upload(self, params: Any, weight: Any = None) -> Any:
            return (Upload(client, {n: t[0] for n, t in params.items()}, 1.0),)

    stacked = replace(shared, params={n: t.unsqueeze(0) for n, t in shared.params.items()})
    ((received,), _) = algorithm.client_update(stacked, {}, Decaying())  # type: ignore[arg-type]
    whole = algorithm.expand(run.state, received)
    for p in PATHS:
        kept = received.params[f"{p}.I"].tolist()
        for slot in range(3):
            factor = 0.9 if slot in kept else 1.0
            torch.testing.assert_close(whole.params[f"{p}.B"][:, slot], factor * run.state.params[f"{p}.B"][:, slot])


def test_lora_a2_without_ranks_is_rolora() -> None:
    """The learning rate is the same for A and B."""
    lora_a2, rolora = Run(algorithms.get("lora-a2", lr_ratio=1.0), 0), Run(algorithms.get("rolora"), 0)
    for index in range(3):
        for run in (lora_a2, rolora):
            run.step(index)
    for name, tensor in lora_a2.state.params.items():
        assert tensor.equal(rolora.state.params[name])


@pytest.mark.parametrize("ranked", [False, True])
def test_lora_a2_trains_b_at_a_multiple_of_the_rate(ranked: bool) -> None:
    """The probe and the training run at the multiple; A and the head of its rounds run at the run's rate."""

    class Asked(SgdTrainer):
        def fit(self, params: Any, **options: Any) -> Any:
            rates.append(options["lr"])
            return super().fit(params, **options)

    run = Run(algorithms.get("lora-a2", lr_ratio=3.0), 0)
    client = replace(run.clients[0], rank=1 if ranked else None)
    for index, expected in ((0, 0.3), (1, 0.1)):
        rates: list[float] = []
        trainer = Asked((client,), run.round(index), run.problem.loss, lr=0.1)
        shared = run.shared(client, index)
        stacked = replace(shared, params={n: t.unsqueeze(0) for n, t in shared.params.items()})
        run.algorithm.client_update(stacked, {}, trainer)
        assert rates == pytest.approx([expected] * (2 if ranked else 1))


# mFedLoRU


def test_mfedloru_uploads_nested_factors(rank: int) -> None:
    """A client that takes no step leaves the server's factors as they are."""
    run = Run(algorithms.get("mfedloru", nested_scale=0.25), 0)
    run.step(0)
    client = run.clients[0]
    before = run.state.params
    outcome = run.train([client], 1)[0]
    uploaded = outcome.upload.params
    shapes = {"Ad": (rank, 5), "Au": (3, rank), "Bd": (rank, 3), "Bu": (7, rank)}
    assert {n.removeprefix("first."): tuple(t.shape) for n, t in uploaded.items() if n.startswith("first.")} == shapes
    whole = run.algorithm.expand(run.state, outcome.upload).params
    for part in "AB":
        change = 0.25 * uploaded[f"first.{part}u"] @ uploaded[f"first.{part}d"]
        torch.testing.assert_close(whole[f"first.{part}"], before[f"first.{part}"] + change, rtol=0, atol=1e-12)
        assert int(torch.linalg.matrix_rank(change)) == rank
    zero = Run(run.algorithm, 0, steps=0)
    zero.state = run.state
    rested = zero.algorithm.expand(zero.state, zero.train([client], 1)[0].upload).params
    for name in before:
        assert rested[name].equal(before[name].double())


def test_clients_with_and_without_nested_factors() -> None:
    algorithm = algorithms.get("mfedloru", tau=2)
    run = Run(algorithm, 0)
    mixed = [replace(c, rank=r) for c, r in zip(run.clients, (None, 1, None), strict=True)]
    for index in range(3):
        uploads = [run.train([c], index)[0].upload for c in mixed]
        whole = [algorithm.expand(run.state, u) for u in uploads]
        mass = sum(u.weight for u in uploads)
        expected: Tensor = sum(u.weight / mass * u.params["second.A"] for u in whole)  # type: ignore[assignment]
        run.state = algorithm.aggregate(run.state, uploads, run.round(index))
        if index == 0:
            torch.testing.assert_close(run.state.params["second.A"], expected, rtol=0, atol=1e-12)
    assert run.state.base["first"].ranks == (run.problem.rank,)


@pytest.mark.parametrize("ranked", [False, True])
def test_mfedloru_without_ranks_or_with_the_runs_is_fedloru(ranked: bool) -> None:
    """Nested factors are for ranks below the run's (appendix C.3)."""
    mfedloru, fedloru = Run(algorithms.get("mfedloru", tau=2), 0), Run(algorithms.get("fedloru", tau=2), 0)
    if ranked:
        mfedloru.clients = tuple(replace(c, rank=mfedloru.problem.rank) for c in mfedloru.clients)
    for index in range(3):
        for run in (mfedloru, fedloru):
            run.step(index)
    assert mfedloru.gap(mfedloru.state, fedloru.state, 3) == 0


def test_mfedloru_nests_only_where_a_module_has_a_higher_rank() -> None:
    """Modules may differ in rank (adapter.rank_pattern); a client of rank 2 opts out of nesting in those of rank 2."""
    problem = TwoLayers.make(0, rank=3)
    params = {n: t[:2] if n == "first.A" else t[:, :2] if n == "first.B" else t for n, t in problem.params.items()}
    run = Run(algorithms.get("mfedloru", nested_scale=0.25), 0)
    run.state = run.algorithm.init(params, problem.weights, run.round(0))
    client = replace(run.clients[0], rank=2)
    for index in range(2):
        before = run.state.params
        outcome = run.train([client], index)[0]
        uploaded = outcome.upload.params
        assert set(pick(uploaded, ~head)) == {"first.A", "first.B", *(f"second.{part}" for part in NESTED)}
        whole = run.algorithm.expand(run.state, outcome.upload).params
        change = 0.25 * uploaded["second.Bu"] @ uploaded["second.Bd"]
        torch.testing.assert_close(whole["second.B"], before["second.B"] + change, rtol=0, atol=1e-12)
        assert whole["first.B"].equal(uploaded["first.B"])
        assert not whole["first.B"].equal(before["first.B"])
        for path in PATHS:
            delta = problem.delta(whole, {}, path)
            torch.testing.assert_close(delta, outcome.after[path], rtol=0, atol=1e-12)
        run.state = run.algorithm.aggregate(run.state, [outcome.upload], run.round(index))


# FlexLoRA and FLoRA at a client's own scale


@pytest.mark.parametrize("name", ["flexlora", "flora"])
def test_client_trains_at_its_own_scale(name: str) -> None:
    """A client of rank 1 in a run of rank 3 takes the steps that LoRA takes at alpha / 1, three times the run's scale;
    its upload is in the run's scale."""
    run = Run(algorithms.get(name, client_scale="rank"), 0)
    run.problem = problem = TwoLayers.make(0, rank=3)
    run.state = run.algorithm.init(problem.params, problem.weights, run.round(0))
    for index in range(3):
        client = replace(run.clients[0], rank=1)
        outcome = run.train([client], index)[0]
        shared = run.shared(client, index)
        start = run.algorithm.view(shared, {})
        if name == "flora":
            fresh = {
                p: run.round(index).factors(w.shape, 1, "fresh", client.id, f"{p}.A")
                for p, w in problem.weights.items()
            }
            start |= {f"{p}.{part}": fresh[p][part == "B"] for p in PATHS for part in "AB"}
        factors = {n: (t / 3 if n.endswith(".B") else t).clone().requires_grad_() for n, t in start.items()}
        for _ in range(run.steps):
            scaled = {n: 3 * t if n.endswith(".B") else t for n, t in factors.items()}
            gradients = torch.autograd.grad(problem.loss(client.id, scaled, shared.base), list(factors.values()))
            pairs = zip(factors.items(), gradients, strict=True)
            factors = {n: (t - 0.1 * g).detach().requires_grad_() for (n, t), g in pairs}
        for n, t in factors.items():
            expected = 3 * t if n.endswith(".B") else t
            torch.testing.assert_close(outcome.upload.params[n], expected.detach(), rtol=0, atol=1e-12)
        assert outcome.upload.params.keys() == factors.keys()
        clients = [replace(c, rank=r) for c, r in zip(run.clients, (1, 3, 2), strict=True)]
        uploads = [run.train([c], index)[0].upload for c in clients]
        run.state = run.algorithm.aggregate(run.state, uploads, run.round(index))


@pytest.mark.parametrize("name", ["flexlora", "flora"])
def test_own_scale_changes_the_training_alone(name: str) -> None:
    """The received model is the same, and so is the run where every client has the run's rank."""
    own, common = (algorithms.get(name, client_scale=scale) for scale in ("rank", "run"))
    runs = [Run(algorithm, 0) for algorithm in (own, common)]
    for index in range(2):
        for run in runs:
            run.clients = tuple(replace(c, rank=run.problem.rank) for c in run.clients)
            run.step(index)
    assert runs[0].gap(runs[0].state, runs[1].state, 2) < 1e-12
    client = replace(runs[1].clients[0], rank=1)
    models = []
    for algorithm in (own, common):
        runs[1].algorithm = algorithm
        models.append(runs[1].model(client, 2))
    for path, change in models[0].items():
        torch.testing.assert_close(change, models[1][path], rtol=0, atol=1e-12)


@RANK_2
@pytest.mark.parametrize("law", [n for n in LAWS if n not in ("consensus", "zero steps", "raw sum")])
@pytest.mark.parametrize("name", ["flexlora", "flora"])
@pytest.mark.sweep(4)
def test_laws_hold_at_a_clients_own_scale(name: str, law: str, rank: int) -> None:
    if law == "exactness" and name == "flexlora":
        return
    LAWS[law](algorithms.get(name, client_scale="rank"), 0)  # raises LawBroken


# SLoRA


@pytest.mark.parametrize("rounds", [1, 2])
def test_slora_second_stage_starts_from_best_approximation(rounds: int) -> None:
    run = Run(algorithms.get("slora", sparse_rounds=rounds, density=0.3), 0)
    for index in range(rounds - 1):
        run.step(index)
    outcomes = run.step(rounds - 1)
    mass = sum(o.upload.weight for o in outcomes)
    for path, weight in run.problem.weights.items():
        mean: Tensor = sum(o.upload.weight / mass * o.after[path] for o in outcomes)  # type: ignore[assignment]
        u, s, vh = torch.linalg.svd(mean)
        best = (u[:, :2] * s[:2]) @ vh[:2]
        torch.testing.assert_close(run.problem.delta(run.state.params, {}, path), best, rtol=0, atol=1e-10)
        torch.testing.assert_close(
            run.state.params[f"{path}.A"] @ run.state.params[f"{path}.A"].T, torch.eye(2).double(), rtol=0, atol=1e-10
        )
        assert weight.scale != 1
    assert {n.rpartition(".")[2] for n in run.state.params if not n.startswith("head")} == {"A", "B"}


def test_slora_clients_move_common_positions_only() -> None:
    run = Run(algorithms.get("slora", density=0.3), 0)
    where = {p: run.state.params[f"{p}.I"].long() for p in PATHS}
    assert {p: len(where[p]) for p in PATHS} == {"first": 11, "second": 15}  # of 35 and 49
    for outcome in run.step(0):
        assert {n for n in outcome.upload.params if not n.startswith("head")} == {"first.S", "second.S"}
        for path in PATHS:
            moved = (outcome.after[path] != outcome.before[path]).flatten().nonzero().flatten()
            assert set(moved.tolist()) <= set(where[path].tolist())
            assert len(moved) > 0


def test_slora_keeps_the_starting_adapter() -> None:
    problem = TwoLayers.make(0)
    g = torch.Generator().manual_seed(1)
    given = {
        n: torch.randn(t.shape, generator=g).double() if n.endswith(".B") else t for n, t in problem.params.items()
    }
    algorithm = algorithms.get("slora", sparse_rounds=1)
    state = algorithm.init(given, problem.weights, Round(0, 4, 0, 3))
    seen = algorithm.view(algorithm.broadcast(state, problem.clients[0], Round(0, 4, 0, 3)), {})
    for path in problem.weights:
        torch.testing.assert_close(problem.delta(seen, {}, path), problem.delta(given, {}, path), rtol=0, atol=1e-12)


STAGED: list[Algorithm[Any]] = [
    algorithms.get("slora", sparse_rounds=1, density=0.3),
    algorithms.get("slora", sparse_rounds=0),
    algorithms.get("slora", sparse_rounds=20, density=1.0),
    algorithms.get("slora", sparse_rounds=1, density=0.3, units="weight"),
    algorithms.get("pfedlora", phases="together"),
    algorithms.get("pfedlora", units="weight"),
    algorithms.get("mfedloru", tau=1, nested_scale=1.0),
]


@pytest.mark.parametrize(
    "algorithm",
    [pytest.param(a, marks=() if i in (0, 4, 6) else pytest.mark.slow) for i, a in enumerate(STAGED)],
    ids=str,
)
@pytest.mark.parametrize("law", [n for n in LAWS if n != "exactness"])
@pytest.mark.sweep(5)
def test_options_obey_the_laws(algorithm: Algorithm[Any], law: str) -> None:
    if law == "consensus" and getattr(algorithm, "sparse_rounds", 0) == 1:  # the step between SLoRA's stages truncates
        with pytest.raises(LawBroken, match="round 0"):
            LAWS[law](algorithm, 0)
        return
    LAWS[law](algorithm, 0)  # raises LawBroken


@pytest.mark.parametrize("units", ["scale", "weight"])
@pytest.mark.parametrize("algorithm", ["slora", "pfedlora"])
def test_step_in_units_of_the_weight_is_a_step_on_it(algorithm: str, units: str) -> None:
    """One step of SGD moves W by the rate times its gradient, or by scale^2 times that in units of the scale."""
    fields = {"phases": "together"} if algorithm == "pfedlora" else {"density": 1.0}
    run = Run(algorithms.get(algorithm, units=units, **fields), 0, steps=1)
    client, problem = run.clients[0], run.problem
    uploaded = run.train([client], 0)[0].upload.params
    for path, weight in problem.weights.items():
        change = torch.zeros(weight.shape, dtype=torch.float64, requires_grad=True)
        inverse = torch.eye(weight.shape[1]).double() / weight.scale
        seen = {**problem.params, f"{path}.B": change, f"{path}.A": inverse}
        (gradient,) = torch.autograd.grad(problem.loss(client.id, seen, {}), change)
        values = uploaded[f"{path}.{'S' if algorithm == 'slora' else 'D'}"].reshape(weight.shape)
        moved, rate = (weight.scale * values, 0.1 * weight.scale**2) if units == "scale" else (values, 0.1)
        torch.testing.assert_close(moved, -rate * gradient, rtol=0, atol=1e-12)


# pFedLoRA and FedHM


@pytest.mark.parametrize("phases", ["separate", "together"])
def test_pfedlora_shared_change_is_a_mean_of_full_rank(phases: str) -> None:
    run = Run(algorithms.get("pfedlora", phases=phases), 0)
    outcomes = run.step(0)
    mass = sum(o.upload.weight for o in outcomes)
    for path, (out, inp) in {"first": (7, 5), "second": (7, 7)}.items():
        mean: Tensor = sum(o.upload.weight / mass * o.upload.params[f"{path}.D"] for o in outcomes)  # type: ignore[assignment]
        torch.testing.assert_close(run.state.params[f"{path}.D"], mean, rtol=0, atol=1e-12)
        assert int(torch.linalg.matrix_rank(mean)) == min(out, inp)
        newcomer = run.model(Client("new", 1), 1)[path]
        torch.testing.assert_close(newcomer, run.problem.weights[path].scale * mean, rtol=0, atol=1e-12)
        for o in outcomes:
            change = o.upload.params[f"{path}.D"] + o.local[f"{path}.pB"] @ o.local[f"{path}.pA"]
            torch.testing.assert_close(o.after[path], run.problem.weights[path].scale * change, rtol=0, atol=1e-12)
            assert {role(n).value for n in o.local} == {"personal down", "personal up"}
            assert module_of(next(iter(o.local))) in PATHS


def test_fedhm_is_flexlora_with_split_both() -> None:
    fedhm, flexlora = Run(algorithms.get("fedhm"), 0), Run(algorithms.get("flexlora", split="both"), 0)
    for index in range(3):
        for run in (fedhm, flexlora):
            run.step(index)
    assert fedhm.gap(fedhm.state, flexlora.state, 3) == 0
