"""Every algorithm of the table obeys every law, for any seed and any value of its fields."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from methods import every_method
from rondo import algorithms
from rondo.algorithm import Algorithm, Round
from rondo.algorithms import formulas as numbers
from rondo.algorithms.factors.florg import FLoRG
from rondo.algorithms.factors.florg_unaligned import FLoRGUnaligned
from rondo.algorithms.factors.rolora import RoLoRA
from rondo.algorithms.formulas import WholeNumbers
from rondo.algorithms.wrappers.local import Local
from rondo.params import add_client_axis, pick, whole
from rondo.testing import LAWS, SgdTrainer, TwoLayers, check_algorithm
from rondo.testing.laws import Formulas, law_bytes
from rondo.testing.run import LawBroken, NotApplicable
from rondo.testing.run import problems as problems_of

NAMES = algorithms.names()
EVERY_LAW = {*LAWS, "bytes"}


def formulas(name: str) -> Formulas:
    entry = algorithms.entry(name)
    return entry.up_numbers, entry.down_numbers


def whole_numbers(name: str) -> WholeNumbers:
    return numbers.WHOLE[algorithms.entry(name).whole]


def assert_lawful(
    algorithm: Algorithm[Any], formulas: Formulas, whole_of: WholeNumbers | None = None, seeds: tuple[int, ...] = (0,)
) -> None:
    """Every law passes. A law may be inapplicable only where its subject is not claimed or not there."""
    results = check_algorithm(algorithm, formulas=formulas, whole=whole_of, seeds=seeds)
    assert {r.law for r in results} == EVERY_LAW
    assert [r for r in results if r.outcome == "failed" or not isinstance(r.detail, str)] == []
    absent = {"exactness": not algorithm.traits.exact, "raw sum": not algorithm.linear}
    absent["consensus"] = algorithm.traits.lossy
    problems = [p for seed in seeds for p in problems_of(algorithm, seed)]
    absent["whole tensors"] = all(algorithm.traits.keeps(n) for p in problems for n in pick(p.params, whole))
    assert {r.law for r in results if r.outcome == "not applicable"} == {law for law, is_so in absent.items() if is_so}


@pytest.mark.parametrize("name", every_method())
def test_algorithm_obeys_every_law(name: str) -> None:
    assert_lawful(algorithms.get(name), formulas(name), whole_numbers(name))


WITH_HEAD = ("fedit", "fedsa-lora", "florg", "flora", "lora-a2")
"""Some kinds of methods: averages, personal factors, Gram matrices, a growing base, ranks of the clients. The engine's
tests train every method with a local head."""


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in WITH_HEAD else pytest.mark.slow) for n in NAMES])
def test_algorithm_obeys_every_law_with_a_local_head(name: str) -> None:
    inner = algorithms.get(name)
    wrapped = Local(inner)
    assert (wrapped.linear, wrapped.traits.exact, wrapped.traits.personal) == (inner.linear, inner.traits.exact, True)
    headless = lambda body, statistics, head: whole_numbers(name)(body, statistics, 0)  # noqa: E731
    assert_lawful(wrapped, formulas(name), headless, seeds=(1,))  # beside whole tensors of the body


PERIODS = {
    "rolora": {"alternate_for": 0.5},
    "fedsvd": {"period": 3},
    "hetlora": {"penalty": 0.1, "prune": True},
    "fedloru": {"tau": 3},
    "pfedloru": {"tau": 3},
    "mfedloru": {"tau": 2},
    "slora": {"sparse_rounds": 3},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", every_method(tuple(PERIODS), ("rolora", "hetlora", "fedloru")))
def test_laws_hold_with_periods_within_a_run(name: str) -> None:
    """Merges, stages and restarts fall into the laws' eight rounds. The law of bytes is for the default fields.

    Once a client of HetLoRA has given up its tail, it uploads zeros there, which moves the model without training.
    """
    results = check_algorithm(algorithms.get(name, **PERIODS[name]), seeds=(0,))
    assert {r.law for r in results if r.outcome == "failed"} == ({"zero steps"} if name == "hetlora" else set())


def test_momentum_restart_is_exempt_from_two_laws() -> None:
    """Factors that stay after a merge count twice, so the model moves without training (FedLoRU, appendix B)."""
    results = check_algorithm(algorithms.get("fedloru", tau=3, restart="momentum"), seeds=(0,))
    assert {r.law for r in results if r.outcome == "failed"} == {"consensus", "zero steps"}


FIELDS = [
    pytest.param("scaffold", {"option": "II"}, marks=pytest.mark.slow),
    pytest.param("ditto", {"personal_epochs": 2}, marks=pytest.mark.slow),
    pytest.param("apfl", {"mixing": "after"}, marks=pytest.mark.slow),
    pytest.param("apfl", {"adaptive": True}, marks=pytest.mark.slow),
    pytest.param("l2gd", {"p": 0.4}, marks=pytest.mark.slow),
    ("per-fedavg", {"variant": "fo"}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fields"), FIELDS, ids=str)
def test_laws_hold_for_every_variant(name: str, fields: dict[str, Any]) -> None:
    ways = (numbers.twice, numbers.twice) if name == "scaffold" else formulas(name)
    assert_lawful(algorithms.get(name, **fields), ways, whole_numbers(name))


@pytest.mark.slow
def test_scaffold_with_a_larger_server_step_is_exempt_from_two_laws() -> None:
    results = check_algorithm(algorithms.get("scaffold", server_lr=1.5), seeds=(0,))
    assert {r.law for r in results if r.outcome == "failed"} == {"consensus", "whole tensors"}


ANY_METHOD = {"name": st.sampled_from(NAMES), "local_head": st.booleans(), "seed": st.integers(0, 2**31)}


@pytest.mark.slow
@settings(max_examples=2)
@given(**ANY_METHOD)
def test_laws_hold_for_any_seed(name: str, local_head: bool, seed: int) -> None:
    algorithm = algorithms.get(name)
    assert_lawful(Local(algorithm) if local_head else algorithm, formulas(name), seeds=(seed,))


@pytest.mark.slow
@settings(max_examples=60)
@given(**ANY_METHOD)
def test_laws_hold_for_many_seeds(name: str, local_head: bool, seed: int) -> None:
    algorithm = algorithms.get(name)
    assert_lawful(Local(algorithm) if local_head else algorithm, formulas(name), seeds=(seed,))


@pytest.mark.slow
@settings(max_examples=3)
@given(alternate_for=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_rolora_obeys_the_laws_for_any_alternating_share(alternate_for: float, seed: int) -> None:
    assert_lawful(RoLoRA(alternate_for), rolora_formulas(alternate_for), seeds=(seed,))


@pytest.mark.slow
@pytest.mark.parametrize("alternate_for", [0.0, 0.5, 1.0])
def test_rolora_obeys_the_laws_when_it_stops_alternating(alternate_for: float) -> None:
    assert_lawful(RoLoRA(alternate_for), rolora_formulas(alternate_for))


def rolora_formulas(alternate_for: float) -> Formulas:
    """The laws' runs have 8 rounds."""
    in_turn = 8 * alternate_for
    return partial(numbers.alternating, in_turn=in_turn), partial(numbers.alternating_down, in_turn=in_turn)


MERGING = [
    (name, {"tau": tau, "restart": restart}, numbers.both, numbers.accumulated)
    for name in ("fedloru", "pfedloru", "mfedloru")
    for tau, restart in ((1, "random"), (1, "momentum"), (3, "random"), (3, "momentum"))
]
STAGES = [
    ("slora", {"sparse_rounds": rounds, "density": density}, numbers.sparse, numbers.sparse)
    for rounds, density in ((0, 0.5), (3, 0.3), (9, 0.1))
]
TURNS = [("fedsvd", {"period": period}, numbers.up, numbers.turned) for period in (1, 3)]


def named(value: Any) -> str:
    """A test's id without an address, which would differ between processes."""
    return str(getattr(value, "__name__", value))


@pytest.mark.parametrize(("name", "fields", "up", "down"), [*MERGING, *STAGES, *TURNS], ids=named)
def test_bytes_follow_the_fields(name: str, fields: dict[str, Any], up: Any, down: Any) -> None:
    formulas = [partial(f, **{n: v for n, v in fields.items() if n in signature(f).parameters}) for f in (up, down)]
    law_bytes(algorithms.get(name, **fields), 0, (formulas[0], formulas[1]))


FLORG_FIELDS = [
    {"bases": bases, "gram_init": gram_init, "offset": offset}
    for bases, gram_init, offset in itertools.product(
        ("orthogonal", "kaiming", "svd"), ("gaussian", "kaiming", "orthogonal"), (False, True)
    )
]


FLORG_STARTS = [
    pytest.param(fields, marks=() if i in (1, 8, 16) else pytest.mark.slow, id="-".join(map(str, fields.values())))
    for i, fields in enumerate(FLORG_FIELDS)
]
"""In the default run every value of every field occurs."""


@pytest.mark.slow
@pytest.mark.parametrize("fields", FLORG_STARTS)
def test_florg_obeys_the_laws_with_every_start(fields: dict[str, Any]) -> None:
    assert_lawful(FLoRG(**fields), formulas("florg"))


@pytest.mark.slow
@settings(max_examples=2)
@given(fields=st.sampled_from(FLORG_FIELDS), gram_std=st.floats(0.01, 0.5), seed=st.integers(0, 2**31))
def test_unaligned_florg_obeys_the_laws_with_any_start(fields: dict[str, Any], gram_std: float, seed: int) -> None:
    assert_lawful(FLoRGUnaligned(gram_std=gram_std, **fields), formulas("florg-unaligned"), seeds=(seed,))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("way", [0, 1], ids=["up", "down"])
@pytest.mark.sweep(6)
def test_law_of_bytes_sees_one_number_too_many(name: str, way: int) -> None:
    """Of a lossy method, which may send less down than its formula, one that sends anything at all."""
    right, algorithm = formulas(name), algorithms.get(name)
    law_bytes(algorithm, 0, right)
    wrong = list(right)
    wrong[way] = lambda *of: 0 if way == 1 and algorithm.traits.lossy else right[way](*of) + 1
    with pytest.raises(LawBroken, match=("up", "down")[way]):
        law_bytes(algorithm, 0, (wrong[0], wrong[1]))


def test_law_of_bytes_does_not_apply_without_a_formula() -> None:
    outcomes = {r.law: r.outcome for r in check_algorithm(algorithms.get("fedit"), seeds=(0,))}
    assert outcomes["bytes"] == "not applicable"


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        *(("rolora", "alternate_for", value) for value in (1.1, -0.1, math.nan)),
        *(("lora-a2", "lr_ratio", value) for value in (0.0, -1.0, math.inf, math.nan)),
        *((name, "gram_std", value) for name in ("florg", "florg-unaligned") for value in (0.0, math.nan, math.inf)),
        *((name, "bases", "sdv") for name in ("florg", "florg-unaligned")),
        *((name, "gram_init", "zeros") for name in ("florg", "florg-unaligned")),
        *(("slora", field, value) for field, value in (("sparse_rounds", -1), ("density", 0.0), ("units", "W"))),
        *(("pfedlora", field, value) for field, value in (("phases", "both"), ("units", "W"))),
        *(("mfedloru", field, value) for field, value in (("nested_scale", 0.0), ("tau", 0))),
        *((name, "client_scale", "own") for name in ("flora", "flexlora")),
        *(("hetlora", field, value) for field, value in (("penalty", -1.0), ("keep", 0.0))),
        *(("lora-fair", field, value) for field, value in (("penalty", 0.0), ("objective", "l2"))),
        *(("flexlora", "split", "down"), ("federa", "aggregation", "sum"), ("fedsvd", "period", 0)),
        *(("fedloru", "tau", 0), ("pfedloru", "restart", "never")),
    ],
)
def test_field_out_of_range_is_named(name: str, field: str, value: float | str) -> None:
    with pytest.raises(ValueError, match=field):
        algorithms.get(name, **{field: value})


def test_problem_can_show_the_common_faults() -> None:
    """A transpose, a lost scale and ignored weights all change its result."""
    problem = TwoLayers.make(0)
    assert {out == inp for out, inp in (w.shape for w in problem.weights.values())} == {False, True}
    assert {n: w for n, w in problem.weights.items() if w.scale == 1} == {}
    assert len({c.num_examples for c in problem.clients}) == len(problem.clients)


def test_law_of_the_raw_sum_is_for_clients_without_ranks() -> None:
    problem = TwoLayers.make(0)
    ranked = replace(problem, clients=tuple(replace(client, rank=1) for client in problem.clients))
    assert LAWS["raw sum"](algorithms.get("fedit"), 0, problem).startswith("difference ")
    with pytest.raises(NotApplicable, match="clients have ranks of their own"):
        LAWS["raw sum"](algorithms.get("fedit"), 0, ranked)


def test_factors_are_beside_whole_tensors_at_odd_seeds() -> None:
    for seed in range(4):
        for name, kinds in (("rolora", ["TwoLayers"]), ("fedavg", ["WholeLayers", "TwoLayers"])):
            problems = problems_of(algorithms.get(name), seed)
            assert [type(problem).__name__ for problem in problems] == kinds
            assert ("second.bias" in problems[-1].params) == (seed % 2 == 1)


def test_trainer_reports_steps_and_examples_per_client() -> None:
    problem = TwoLayers.make(0)
    trainer = SgdTrainer(problem.clients, Round(0, 1, 0, 3), problem.loss)
    fit = trainer.fit(add_client_axis(problem.params, 3), steps=2)
    assert fit.steps.tolist() == [2, 2, 2]
    assert fit.examples.tolist() == [2 * c.num_examples for c in problem.clients]
    assert fit.loss.shape == (3,)
