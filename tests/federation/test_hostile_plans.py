"""A server that stays polite and still wants more than a site's contract allows: chosen rows, one row's gradient, wider
tensors, time without end."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from desks import Make, asked, contract, with_

from rondo.config.schema import RunConfig
from rondo.data.labels import MOST
from rondo.engine.wire.letters import Reply, Request
from rondo.engine.wire.parcel import Parcel, version
from rondo.engine.wire.strict import Rejected
from rondo.federation.plan import Consent, End, NotAPlan, Plan
from rondo.federation.site.contract.terms import of_plan
from small_runs import reviews

SAFE = contract()
WHOLE = contract(training={"tensors": "whole"})


pytestmark = pytest.mark.usefixtures("refusals_at_once")


def answered(here: Any, request: Request) -> Reply:
    return Reply.decode(here.answer("round", request.encode()))


def of_its_model(here: Any, plan: Plan) -> Plan:
    """``plan`` with the identity of the site's model, which a server knows."""
    told = asked(here, plan).refused
    assert "this site's " in told, told
    return replace(plan, model=told.partition("this site's ")[2][:64])


def broadcast(request: Request, **params: torch.Tensor) -> Request:
    """``request`` with other tensors, and their right versions."""
    versions = {**request.parcel.versions, **{n: version(t) for n, t in params.items()}}
    return replace(request, parcel=Parcel(versions, {**request.parcel.params, **params}, {}))


# --- rows ---------------------------------------------------------------------------------------------------------

DIAGNOSES = [{"text": row["text"], "label": f"D{i % 25}"} for i, row in enumerate(reviews(100))]


@pytest.mark.sweep(3)
@pytest.mark.parametrize("names", [["D1", "none"], ["D1", "D2"], ["none", "nor this"]])
def test_class_names_cannot_be_guessed(plan: Plan, tmp_path: Path, desk: Make, names: list[str]) -> None:
    """A run with classes of the server's choice would count the rows of each, and tell which are there."""
    guess = replace(with_(plan, data={"bad_rows": "drop"}), labels=tuple(names))
    many = contract(training={"least_rows": 1})
    answers = {asked(desk(tmp_path, contract=many, rows=DIAGNOSES), guess).refused}
    some = [row for row in DIAGNOSES if row["label"] in ("D3", "D4")]
    answers.add(asked(desk(tmp_path, contract=many, rows=some), guess).refused.replace("", ""))
    assert [answer for answer in answers if "class names" not in answer] == [], answers


def test_run_that_has_more_classes_than_the_site(plan: Plan, tmp_path: Path, desk: Make) -> None:
    assert asked(desk(tmp_path, contract=SAFE), replace(plan, labels=("neg", "other", "pos"))).refused.startswith(
        "model"
    )


def test_chosen_rows_are_not_counted(plan: Plan, tmp_path: Path, desk: Make) -> None:
    rows = [{**row, "code": "7.5" if i % 2 else "none"} for i, row in enumerate(reviews(40))]
    numbers = {"kind": "sequence-regression", "label": None, "target": "code"}
    here = desk(tmp_path, contract=contract(rows={"labels": ["label", "code"]}), rows=rows)
    chosen = with_(replace(plan, labels=()), task=numbers, data={"bad_rows": "drop"})
    answer = asked(here, of_its_model(here, chosen))
    assert "rows left out of ann" in answer.refused


# --- texts and columns that each row would get -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "key"),
    [
        ({"kind": "embedding", "anchor": "text", "positive": "text", "negative": ["text"] * 10**5}, "task.negative"),
        ({"kind": "multiple-choice", "prompt": ["text"] * 10**5, "choices": "text", "answer": "label"}, "task.prompt"),
        ({"kind": "causal-lm", "prompt": "text", "response": "label", "separator": "good " * 10**6}, "task.separator"),
        ({"kind": "sequence-classification", "text": "text", "label": "label",
          "labels": [str(n) for n in range(10**5)] + ["0"]}, "task.labels"),
        ({"kind": "image-classification", "image": "text", "label": "label", "image_size": 10**6}, "task.image_size"),
    ],
    ids=["negatives", "prompts", "separator", "labels", "pictures"],
)  # fmt: skip
def test_plan_that_blows_up_each_row(plan: Plan, tmp_path: Path, desk: Make, task: Any, key: str) -> None:
    """Rows are read before their owner is asked, so memory and time for them must not be the plan's choice."""
    began = time.monotonic()
    config = {**plan.config, "task": {"max_length": 32, **task}}
    assert key in asked(desk(tmp_path, contract=SAFE), replace(plan, config=config)).refused
    assert time.monotonic() - began < 30


# --- rows and steps behind an upload ------------------------------------------------------------------------------


def test_windows_of_one_row_are_one_row(plan: Plan, tmp_path: Path, desk: Make) -> None:
    given = json.dumps({"text": ["good"], "answer_start": [0]})
    rows = [{"context": "good " * 200, "question": "was it", "answers": given}] * 2
    asks = {"kind": "question-answering", "context": "context", "question": "question", "answers": "answers"}
    task = {**dict.fromkeys(("text", "label")), **asks, "max_length": 32, "stride": 8}
    owner = contract(rows={"inputs": ["context", "question"], "labels": ["answers"]})
    here = desk(tmp_path, contract=owner, rows=rows)
    windows = with_(replace(plan, labels=()), task=task, data={"validation_fraction": 0.0})
    answer = asked(here, of_its_model(here, windows))
    assert "rows of ann: too few" in answer.refused, answer


def test_gradient_of_one_row_in_a_pass_over_all(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    """Per-FedAvg's step is a gradient of a part of the batch: here of one row."""
    alone = {"name": "per-fedavg", "variant": "fo", "inner_lr": 0.0, "support": 0.999}
    here = desk(tmp_path, contract=SAFE)
    answer = asked(here, with_(plan, algorithm=alone, train={"batch_size": 100, "optimizer": "sgd"}))
    assert answer.refused or "less is behind it" in answered(here, request_).detail
    here = desk(tmp_path, contract=SAFE)
    honest = {"name": "per-fedavg", "variant": "fo"}
    train = {"batch_size": 3, "optimizer": "sgd", "local_epochs": 2}
    assert asked(here, with_(plan, algorithm=honest, train=train)).clients
    assert answered(here, request_).upload


@pytest.mark.parametrize(
    ("train", "method"),
    [
        ({"weight_decay": 1.0}, {}),
        ({"weight_decay": 0.9, "optimizer": "adamw"}, {}),
        ({"weight_decay": 0.09, "lr_ratio": 10.0}, {}),
        ({}, {"name": "fedprox", "mu": 1.0}),
    ],
)
def test_steps_that_are_forgotten(plan: Plan, tmp_path: Path, desk: Make, train: Any, method: Any) -> None:
    """A decay of the whole tensor per step leaves the gradient of the last step alone: of one row."""
    alone = {"optimizer": "sgd", "lr": 1.0, "batch_size": 1, "max_grad_norm": 0, **train}
    last = with_(plan, train=alone, algorithm=method)
    assert "decay per step" in asked(desk(tmp_path, contract=SAFE), last).refused
    usual = with_(plan, train={"weight_decay": 0.1, "lr": 1e-2}, algorithm=method)
    assert asked(desk(tmp_path, contract=SAFE), usual).clients


@pytest.mark.parametrize("change", [{"index": -5}, {"seed": 99}, {"total": 10**6}, {"index": 7}, {"skipped": -3}])
def test_round_that_is_not_of_the_run(plan: Plan, request_: Request, tmp_path: Path, desk: Make, change: Any) -> None:
    here = desk(tmp_path, contract=SAFE)
    assert asked(here, plan).clients
    for scores in (False, True):
        reply = answered(here, replace(request_, round=replace(request_.round, **change), scores=scores))
        assert reply.reason == "refused"
        assert "not a round of this run" in reply.detail


# --- tensors ------------------------------------------------------------------------------------------------------


def test_tensors_of_a_larger_rank_than_the_plans(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    """With A = 1, the gradient in B is that of the whole layer."""
    here = desk(tmp_path, contract=SAFE)
    assert asked(here, plan).clients
    wide = {}
    for name, tensor in request_.parcel.params.items():
        if name.endswith(".A"):
            wide[name] = torch.eye(tensor.shape[1])
        if name.endswith(".B"):
            wide[name] = torch.zeros(tensor.shape[0], request_.parcel.params[name[:-1] + "A"].shape[1])
    reply = answered(here, broadcast(request_, **wide))
    assert not reply.upload
    assert "form" in reply.detail
    assert answered(here, request_).upload


def test_head_of_the_servers_choice(plan: Plan, tmp_path: Path, desk: Make) -> None:
    """A network without a hub takes any layers for its head: only with a contract that lets whole tensors leave."""
    own = with_(plan, train={"what": "head"}, model={"name": "builtin:mlp", "head_layers": ["0"]})
    config = RunConfig.model_validate({"model": own.config["model"], "train": {"what": "head"}})
    for contract_, kept in ((SAFE, False), (WHOLE, True)):
        (term,) = (t for t in of_plan(own, config, contract_, None) if t.subject == "trained tensors")
        assert term.kept == kept
    layers = {"head_layers": ["bert.encoder.layer.0", "bert.encoder.layer.1", "classifier"]}
    body = with_(plan, train={"what": "head"}, algorithm={"name": "fedavg"}, model=layers)
    assert "model.head_layers" in asked(desk(tmp_path, contract=SAFE), body).refused


# --- time ---------------------------------------------------------------------------------------------------------


def test_scores_without_end(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    here = desk(tmp_path, contract=contract(training={"minutes_per_round": 0.01}))
    assert asked(here, with_(plan, evaluation={"fine_tune_epochs": 10**7})).clients
    began = time.monotonic()
    assert "longer than its owner allows" in answered(here, replace(request_, scores=True)).detail
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    "pattern",
    [".?" * 60 + "zz", "(?:.|.)" * 40 + "zz", "(?x)(.+)#\n+zz", ["(a+)+$", "layer"], ".{1,9}" * 3 + ".?.?.?zz"],
)
@pytest.mark.parametrize("key", ["target_modules", "layers_pattern"])
def test_pattern_without_end(plan: Plan, tmp_path: Path, desk: Make, key: str, pattern: Any) -> None:
    if isinstance(pattern, list) and key == "target_modules":
        pytest.skip("names, and no patterns")
    more = {"layers_to_transform": [0]} if key == "layers_pattern" else {}
    began = time.monotonic()
    answer = asked(desk(tmp_path, contract=SAFE), with_(plan, adapter={key: pattern, **more}))
    assert f"adapter.{key}" in answer.refused
    assert time.monotonic() - began < 2


def test_step_that_takes_more_memory_than_allowed(plan: Plan, tmp_path: Path, desk: Make) -> None:
    rows = [{"text": "good " * 60, "label": label} for label in ("neg", "pos") * 300]
    greedy = with_(plan, train={"batch_size": 10**9}, task={"max_length": 64})
    here = desk(tmp_path, contract=contract(training={"memory_mb": 1}), rows=rows)
    assert "memory of a step" in asked(here, greedy).refused
    assert asked(desk(tmp_path, contract=contract(training={"memory_mb": 1000}), rows=rows), plan).clients


# --- letters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"name": "a" * 10**5}},
        {"model": {"name": "a\0b"}},
        {"model": {"gguf_file": "/etc/passwd"}},
        {"model": {"gguf_file": "a" * 10**5}},
        {"model": {"revision": "a" * 10**5}},
        {"task": {"text": "a" * 10**5}},
        {"algorithm": {"name": "a" * 10**5}},
    ],
    ids=str,
)
def test_name_that_no_disk_takes(plan: Plan, tmp_path: Path, desk: Make, change: Any) -> None:
    for options in ({"model": None}, {}):
        answer = asked(desk(tmp_path, contract=SAFE, **options), with_(plan, **change))
        assert isinstance(answer.refused, str)


def test_consent_to_given_classes_is_none_to_tell_them(plan: Plan, tmp_path: Path, desk: Make) -> None:
    offers: list[Any] = []

    def consent(offer: Any) -> bool:
        offers.append(offer)
        return True

    here = desk(tmp_path, contract=SAFE, consent=consent)
    assert asked(here, plan).clients
    assert asked(here, replace(plan, labels=None)).labels == ("neg", "pos")
    assert len(offers) == 2
    assert asked(here, plan).clients
    assert len(offers) == 2


def test_trainings_that_fail_count_as_uploads(plan: Plan, request_: Request, tmp_path: Path, desk: Make) -> None:
    """Tensors can be made so that a loss is finite only without a certain row."""
    here = desk(tmp_path, contract=contract(outgoing={"uploads_per_day": 2}))
    assert asked(here, with_(plan, train={"lr": 1e30, "max_grad_norm": 0, "optimizer": "sgd"})).clients
    reasons = [answered(here, request_).reason for _ in range(5)]
    assert reasons == ["nonfinite_loss"] * 2 + ["refused"] * 3


def test_more_classes_than_a_run_has(plan: Plan, tmp_path: Path, desk: Make) -> None:
    many = replace(plan, labels=("neg", "pos", *map(str, range(10**5))))
    assert "invalid plan: labels should be" in asked(desk(tmp_path, contract=SAFE), many).refused


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        *(({key: 7}, f"invalid plan: {key} should be a valid string, got 7") for key in ("run", "model")),
        *(({key: "x" * 201}, f"{key} should have at most 200 characters") for key in ("run", "model")),
        *(({"config": value}, "config should be an object of sections, got") for value in ([], None, {"seed": [1]})),
        *(({"clients": value}, "clients should be a list of names, got") for value in ("ann", [1])),
        *(
            (
                {"labels": value},
                "labels should be a list of at most 1000 distinct names, of 1000 characters at most, got",
            )
            for value in (
                "ab",
                ["a", "a"],
                ["a", " "],
                ["a", 1],
                ["a" * 1001],
                ["\ud800"],
                [*map(str, range(MOST + 1))],
            )
        ),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_field_of_another_kind_makes_no_plan(plan: Plan, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(NotAPlan, match=words):
        Plan.decode(json.dumps({**json.loads(plan.encode()), **changes}).encode())


def test_as_many_and_as_long_labels_as_a_run_can_have(plan: Plan) -> None:
    labels = ("a" * 1000, *map(str, range(MOST - 1)))
    assert Plan.decode(replace(plan, labels=labels).encode()).labels == labels
    assert Plan.decode(replace(plan, labels=None, clients=None).encode()).labels is None
    assert Consent.decode(Consent({}, labels).encode()).labels == labels
    with pytest.raises(Rejected, match="labels should be a list of at most 1000 distinct names"):
        Consent.decode(Consent({}, (*labels, "one more")).encode())


def test_end_of_a_run_has_a_reason_or_none_is_known() -> None:
    assert End.decode(End("the disk is full").encode()) == End("the disk is full")
    for data in (b"", b"[]", b'{"reason": 7}'):
        assert End.decode(data).reason == "its server gives no reason"
