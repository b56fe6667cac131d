"""Factors that a method draws itself follow ``adapter.init_lora_weights``, as those that PEFT draws do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from methods import every_method
from rondo import algorithms, messages
from rondo.algorithm import Client
from rondo.params import pick
from rondo.testing import LAWS
from rondo.testing.run import Run
from tiny_federation import RANK, config, make
from watched import noted

DRAWING: dict[str, dict[str, Any]] = {
    "fedloru": {"tau": 1},
    "pfedloru": {"tau": 1},
    "mfedloru": {"tau": 1},
    "pfedlora": {},
    "flora": {},
}
"""Methods that draw factors, with the fields that make them do so in every round."""


@pytest.fixture(params=[True, "gaussian", "orthogonal"], ids=str)
def start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """``init_lora_weights`` of every round of a :class:`Run`."""
    plain = Run.round
    monkeypatch.setattr(Run, "round", lambda run, t: replace(plain(run, t), init_lora_weights=request.param))
    return request.param


@pytest.mark.parametrize("name", DRAWING)
def test_every_draw_has_the_configured_start(name: str, start: Any) -> None:
    with noted(messages, "fresh_factors") as calls:
        run = Run(algorithms.get(name, **DRAWING[name]), 0, steps=0)
        outcomes = run.step(0)
    assert {call.arguments[2] for call in calls} == {start}
    drawn = [factor for call in calls for factor in call.answer]
    held = [run.state.params, *(o.local for o in outcomes), *(o.upload.params for o in outcomes)]
    for factor in drawn:
        assert [n for params in held for n, t in params.items() if factor.equal(t)], "a factor was drawn and not used"


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", every_method(tuple(DRAWING), ["fedloru", "flora"]))
@pytest.mark.parametrize("law", ["zero steps", "cohort", "exactness", "same seed", "first round learns"])
def test_laws_hold_for_every_start(name: str, start: Any, law: str) -> None:
    algorithm = algorithms.get(name, **DRAWING[name])
    if law != "exactness" or algorithm.traits.exact:
        LAWS[law](algorithm, 0)  # raises LawBroken


def test_flora_draws_for_each_client_module_and_round() -> None:
    """Equal A would span one subspace of rank r, where the paper's stack has rank K r."""
    run = Run(algorithms.get("flora"), 0, steps=0)
    uploads = [run.train([client], index)[0].upload.params for index in (0, 1) for client in run.clients]
    drawn = [upload[name] for upload in uploads for name in ("first.A", "second.A")]
    assert len({tuple(a.flatten()[:5].tolist()) for a in drawn}) == len(drawn) == 2 * 2 * len(run.clients)


def test_nested_factors_have_the_configured_start(start: Any) -> None:
    """Ad and Bd of rank 1: standard normal where PEFT's start is N(0, 1/r^2)."""
    if start == "orthogonal":
        return  # needs an even rank
    run = Run(algorithms.get("mfedloru"), 0, steps=0)
    uploads = [run.train([Client(str(k), 1, 1)], 0)[0].upload.params for k in range(99)]
    for name, inp in (("first.Ad", 5), ("second.Ad", 7), ("first.Bd", 2)):
        deviation = torch.stack([u[name] for u in uploads]).std()
        assert float(deviation) == pytest.approx(1.0 if start == "gaussian" else (3 * inp) ** -0.5, rel=0.2)
        assert [u for u in uploads if u[f"{name[:-1]}u"].any()] == []


def test_run_draws_as_its_configuration_says() -> None:
    """The restart's A in a whole federation: N(0, 1/r^2) or U(-1/sqrt(in), 1/sqrt(in))."""
    for start, deviation in ((True, None), ("gaussian", 1 / RANK)):
        simulation = make("fedloru", run=config(adapter={"init_lora_weights": start}), tau=1)
        simulation.run_round(0)
        for name, a in pick(simulation.state.params, lambda n: n.endswith(".A")).items():
            expected = deviation or (3 * a.shape[1]) ** -0.5
            assert float(a.std()) == pytest.approx(expected, rel=0.25), name
