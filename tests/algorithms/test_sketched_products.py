"""FlexLoRA and FedEx-LoRA from sketches of the clients' products: exact where the sketches are wide enough, near where
they are not, and an error that says how near."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from rondo import algorithms
from rondo.algorithm import Client, Mean, Round, Upload, Weight, weighted_mean
from rondo.algorithms import formulas
from rondo.algorithms.compatible import refused
from rondo.algorithms.parts.sketch import PROBES, rebuilt, relative_error, sketches
from rondo.algorithms.trial import trial_upload
from rondo.algorithms.wrappers.local import Local
from rondo.lowrank import LowRank
from rondo.params import Params
from rondo.testing import LAWS, TwoLayers, check_algorithm
from rondo.testing.run import LawBroken, Run, largest_gap

BOTH = pytest.mark.parametrize("name", ["flexlora", "fedex-lora"])
OUT, IN, RANK, CLIENTS = 40, 30, 3, 4
ROUND = Round(2, 5, 11, CLIENTS)


def factors(seed: int = 0, dtype: torch.dtype = torch.float64, rank: int = RANK) -> Params:
    """A and B of every client, with a client axis; clients agree but for a tenth."""
    g = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        common, own = (torch.randn(n, *shape, generator=g, dtype=torch.float64) for n in (1, CLIENTS))
        return (common + 0.1 * own).to(dtype)

    return {"m.A": drawn(rank, IN), "m.B": drawn(OUT, rank)}


def mean_of(params: Params) -> Params:
    """The mean of the clients in float64."""
    return {name: tensor.double().mean(0) for name, tensor in params.items()}


def product(params: Params) -> Tensor:
    """The mean of the clients' products in float64, dense."""
    return (params["m.B"].double() @ params["m.A"].double()).mean(0)


def by_formula(params: Params, columns: int, round: Round) -> tuple[NDArray[Any], float]:
    """``Y (P Y)^+ P M`` for the dense mean M by NumPy, with Y = M W, and the relative error by eight columns of W."""
    generator = round.generator("sketch", "m")
    shapes = ((IN, columns + 8), columns), ((2 * columns + 1, OUT), 2 * columns + 1)
    w, p = (
        (torch.randn(*shape, generator=generator, dtype=torch.float64) / math.sqrt(n)).float().double().numpy()
        for shape, n in shapes
    )
    m = product(params).numpy()
    y, seen = m @ w[:, :columns], m @ w[:, columns:]
    found = y @ np.linalg.pinv(p @ y, rcond=1e-13) @ (p @ m)
    return found, float(np.linalg.norm(seen - found @ w[:, columns:]) / np.linalg.norm(seen))


@pytest.mark.parametrize("columns", [2, 5, 11])
def test_rebuilt_mean_is_that_of_the_formula(columns: int) -> None:
    params = factors()
    (module,) = rebuilt(mean_of(sketches(params, columns, ROUND)), columns, ROUND)
    found, error = by_formula(params, columns, ROUND)
    torch.testing.assert_close(module.matrix.dense(), torch.from_numpy(found), rtol=0, atol=1e-10)
    assert relative_error([module]) == {"sketch_error": pytest.approx(error, rel=1e-9)}


@pytest.mark.parametrize(("columns", "exact"), [(CLIENTS * RANK, True), (CLIENTS * RANK - 1, False), (64, True)])
def test_mean_is_exact_from_its_rank_on(columns: int, exact: bool) -> None:
    params = factors()
    (module,) = rebuilt(mean_of(sketches(params, columns, ROUND)), columns, ROUND)
    gap = float((module.matrix.dense() - product(params)).norm() / product(params).norm())
    assert (gap < 1e-12) == exact
    assert (relative_error([module])["sketch_error"] < 1e-12) == exact


def test_known_part_leaves_a_rest_of_lower_rank() -> None:
    """The residual of K clients has the rank (K - 1) r."""
    params, columns = factors(), (CLIENTS - 1) * RANK
    known = {"m": LowRank(*(params[f"m.{part}"].mean(0) for part in "BA"))}
    (module,) = rebuilt(mean_of(sketches(params, columns, ROUND)), columns, ROUND, known)
    torch.testing.assert_close((known["m"] + module.matrix).dense(), product(params), rtol=0, atol=1e-12)
    assert module.matrix.rank == columns


@pytest.mark.parametrize("columns", [4, 8])
def test_estimates_are_unbiased_over_the_draws(columns: int) -> None:
    """With the standard error of 400 draws; and the errors obey theorem 4.3 of the source in the mean."""
    params, exact = factors(), product(factors())
    true, estimated, norms = [], [], []
    for seed in range(400):
        round = replace(ROUND, seed=seed)
        (module,) = rebuilt(mean_of(sketches(params, columns, round)), columns, round)
        true.append(float((module.matrix.dense() - exact).square().sum()))
        estimated.append(module.lost)
        norms.append(module.total)
    gaps = np.array(estimated) - np.array(true)
    assert abs(gaps.mean()) < 4 * gaps.std() / 20
    assert abs(np.mean(norms) - float(exact.square().sum())) < 4 * np.std(norms) / 20
    values = np.linalg.svd(exact.numpy(), compute_uv=False) ** 2
    bound = 2 * min((1 + k / (columns - k - 1)) * values[k:].sum() for k in range(columns - 1))
    assert np.mean(true) < bound


@BOTH
@pytest.mark.parametrize("seed", [0, 1])
def test_rounds_of_wide_sketches_are_those_of_single_uploads(name: str, seed: int) -> None:
    """The layers have at most seven inputs and outputs."""
    exact, sketched = (Run(algorithms.get(name, sketch=columns), seed) for columns in (0, 7))
    for index in range(5):
        for run in (exact, sketched):
            run.step(index, run.clients if index % 2 == 0 else run.clients[::2])
        models = [run.model(run.clients[0], index + 1) for run in (exact, sketched)]
        assert largest_gap(*models) < 1e-10
        assert sketched.algorithm.measures(sketched.state)["sketch_error"] < 1e-12
    assert exact.algorithm.measures(exact.state) == {}


def test_residual_needs_only_the_columns_of_its_rank() -> None:
    """Three clients of rank 2: 4 columns, where the mean of their products needs 6."""
    exact, sketched = (Run(algorithms.get("fedex-lora", sketch=columns), 0) for columns in (0, 4))
    for index in range(3):
        for run in (exact, sketched):
            run.step(index)
        assert largest_gap(*(run.model(run.clients[0], index + 1) for run in (exact, sketched))) < 1e-10


def numbers(columns: int, factors_too: bool, r: int, i: int, o: int, t: int, k: int) -> int:
    s = min(columns, i, o)
    return (s + 8) * o + min(2 * s + 1, o) * i + (r * (i + o) if factors_too else 0)


@BOTH
@pytest.mark.parametrize("columns", [2, 3, 16])
@pytest.mark.parametrize("local_head", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.sweep(6)
def test_sketched_methods_obey_every_law(name: str, columns: int, local_head: bool) -> None:
    """Above the rank of the factors, clients that agree are told what they agree on."""
    algorithm = algorithms.get(name, sketch=columns)
    entry = algorithms.entry(name)
    down = partial(entry.down_numbers, sketch=columns) if name == "fedex-lora" else entry.down_numbers
    ways = partial(numbers, columns, name == "fedex-lora"), down
    tried = Local(algorithm) if local_head else algorithm
    results = check_algorithm(tried, formulas=ways, seeds=(0, 1))
    assert {r.law: r.outcome for r in results if r.outcome != "passed"} == {"exactness": "not applicable"}


@BOTH
def test_numbers_of_the_table_follow_the_field(name: str) -> None:
    of = algorithms.entry(name).up_numbers
    for case in ((2, 5, 7, 0, 3), (8, 384, 384, 1, 12), (4, 300, 10, 2, 1)):
        for columns in (1, 4, 16, 500):
            assert of(*case, sketch=columns) == numbers(columns, name == "fedex-lora", *case)  # type: ignore[call-arg]
    assert formulas.residual(2, 50, 70, 0, 9, sketch=3) == 2 * 120 + 3 * 120


def test_too_few_columns_lose_what_clients_agree_on() -> None:
    with pytest.raises(LawBroken, match="the new model is"):
        LAWS["consensus"](algorithms.get("flexlora", sketch=1), 0)


@BOTH
def test_method_is_linear_with_a_sketch_alone(name: str) -> None:
    plain, sketched = (algorithms.get(name, sketch=columns) for columns in (0, 16))
    assert (plain.linear, sketched.linear) == (False, True)
    refusals = [refused(a.traits, linear=a.linear) for a in (plain, sketched)]
    opened = {"secure aggregation", "client DP", "client DP, masked", "robust mean", "rounding"}
    assert refusals[0].keys() - refusals[1].keys() == opened
    assert {"server optimizer", "top-k"} <= refusals[1].keys()
    assert sketched.traits.client_ranks == plain.traits.client_ranks


@BOTH
def test_client_that_learned_nothing_sends_the_sketches_of_the_broadcast(name: str) -> None:
    run = Run(algorithms.get(name, sketch=3), 0, steps=0)
    run.step(0)
    run.steps = 3
    run.step(1)
    run.steps = 0
    client = run.clients[0]
    shared = run.shared(client, 2)
    trial = trial_upload(run.algorithm, shared, client, run.round(2))
    sent = run.train([client], 2)[0].upload
    # One client's product and that of a batch of one are rounded in other ways by some processors.
    assert largest_gap(trial.params, sent.params) < 1e-14
    expected = sketches(shared.params, 3, run.round(2))
    assert largest_gap({n: sent.params[n] for n in expected}, expected) < 1e-14


def test_draws_are_the_same_in_both_precisions() -> None:
    params = factors(dtype=torch.float32)
    one = sketches(params, 4, ROUND)
    other = sketches({n: t.double() for n, t in params.items()}, 4, ROUND)
    for name, tensor in one.items():
        torch.testing.assert_close(tensor.double(), other[name], rtol=1e-5, atol=1e-5)
    identity = {"m.A": torch.eye(IN), "m.B": torch.eye(IN)}
    drawn = [sketches({n: t.to(d) for n, t in identity.items()}, 4, ROUND) for d in (torch.float32, torch.float64)]
    assert largest_gap({n: t.double() for n, t in drawn[0].items()}, drawn[1]) == 0


def test_draws_are_of_the_round_and_the_module() -> None:
    """A client takes them from the run's seed, so they do not travel."""
    params = {
        f"{path}.{part}": tensor for path in ("m", "n") for part, tensor in zip("AB", factors().values(), strict=True)
    }
    first, again = (sketches(params, 4, replace(ROUND, skipped=skipped)) for skipped in (0, 3))
    assert largest_gap(first, again) == 0
    others = [sketches(params, 4, r) for r in (replace(ROUND, index=3), replace(ROUND, seed=12))]
    assert {bool((first["m.range"] == other["m.range"]).any()) for other in others} == {False}
    assert not bool((first["m.range"] == first["n.range"]).any())


@pytest.mark.parametrize("client_scale", ["run", "rank"])
def test_clients_of_other_ranks_send_sketches_of_one_shape(client_scale: str) -> None:
    problem = TwoLayers.make(0, rank=3)
    ranked = replace(problem, clients=tuple(replace(c, rank=k + 1) for k, c in enumerate(problem.clients)))
    exact, sketched = (
        Run(algorithms.get("flexlora", sketch=columns, client_scale=client_scale), 0, ranked) for columns in (0, 7)
    )
    for index in range(3):
        outcomes = [run.step(index) for run in (exact, sketched)]
        shapes = [{n: t.shape for n, t in o.upload.params.items()} for o in outcomes[1]]
        assert shapes == shapes[:1] * 3
        assert largest_gap(*(run.model(run.clients[0], index + 1) for run in (exact, sketched))) < 1e-10


@BOTH
def test_zero_products_have_no_error(name: str) -> None:
    matrix = torch.zeros(OUT, IN)
    algorithm = algorithms.get(name, sketch=4)
    start = {"m.A": torch.zeros(RANK, IN), "m.B": torch.zeros(OUT, RANK)}
    state = algorithm.init(start, {"m": Weight((OUT, IN), 1.0, lambda: matrix)}, ROUND)
    assert algorithm.measures(state) == {}
    client = Client("a", 3)
    nothing = trial_upload(algorithm, algorithm.broadcast(state, client, ROUND), client, ROUND)
    new = algorithm.aggregate(state, [Upload(client, nothing.params, 3.0)], ROUND)
    assert algorithm.measures(new) == {"sketch_error": 0.0}
    assert {n: float(t.abs().sum()) for n, t in new.params.items() if n == "m.B"} == {"m.B": 0.0}


def test_noise_in_the_sketches_counts_as_error() -> None:
    params = factors()
    mean = mean_of(sketches(params, 16, ROUND))
    g = torch.Generator().manual_seed(0)
    noisy = {n: t + 0.3 * torch.randn(t.shape, generator=g, dtype=torch.float64) for n, t in mean.items()}
    clean, error = (relative_error(rebuilt(m, 16, ROUND))["sketch_error"] for m in (mean, noisy))
    (module,) = rebuilt(noisy, 16, ROUND)
    true = float((module.matrix.dense() - product(params)).norm() / product(params).norm())
    assert clean < 1e-12 < 0.5 * true < error < 3 * true


@BOTH
def test_negative_number_of_columns_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="sketch is a number of columns, or 0 for single uploads; got -1"):
        algorithms.get(name, sketch=-1)


def test_mean_of_uploads_is_all_that_the_server_needs() -> None:
    """Also within wrappers, whose ``measures`` are the method's."""
    run = Run(Local(algorithms.get("fedex-lora", sketch=3)), 0)
    uploads = [o.upload for o in (run.train([c], 0)[0] for c in run.clients)]
    mean = weighted_mean(uploads)
    state = run.algorithm.finish(run.state, Mean(dict(mean.params), mean.weight, mean.count), run.round(0))
    assert run.algorithm.measures(state).keys() == {"sketch_error"}
    assert PROBES == 8
