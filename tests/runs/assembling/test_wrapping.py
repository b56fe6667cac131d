"""The wrappers that a run puts around its method, by the head policy and the policy of statistics."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from outcomes import told
from rondo import algorithms
from rondo.algorithm import HeadPolicy
from rondo.algorithms.wrappers.local import Local, SharedHead
from rondo.config import load
from rondo.errors import ConfigError
from rondo.params import Select, buffer, head
from rondo.runs.assembling.wrapping import _no_gradient_step, make_algorithm, with_policies, wrapped

HEAD, BODY, BUFFER = "head:out.weight", "first.weight", "buffer:first.mean"


def wrap(name: str, *tensors: str, **model: Any) -> tuple[Any, HeadPolicy | None, set[str]]:
    config = load({"algorithm": {"name": name}, "model": model, "train": {"what": "all"}})
    initial = {n: torch.zeros(2) for n in tensors}
    algorithm, policy, kept = wrapped(config, make_algorithm(config), initial, ())
    return algorithm, policy, set(kept)


@pytest.mark.parametrize("name", ["fedrep", "fedper", "local"])
def test_method_that_keeps_the_head_needs_no_wrapper(name: str) -> None:
    algorithm, policy, _ = wrap(name, HEAD, BODY)
    assert (algorithm, policy) == (algorithms.get(name), "local")
    assert with_policies(algorithm, "shared") == SharedHead(algorithm)


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedit"])
def test_local_head_is_a_wrapper_elsewhere(name: str) -> None:
    algorithm, policy, _ = wrap(name, HEAD, "first.A", "first.B", BODY, head="local")
    assert (algorithm, policy) == (Local(algorithms.get(name), head), "local")
    assert wrap(name, HEAD, "first.A", "first.B", BODY)[0] == algorithms.get(name)


@pytest.mark.parametrize(
    ("name", "policy", "stays"),
    [("fedavg", "shared", buffer), ("fedavg", "local", buffer | head), ("fedrep", "local", buffer)],
)
def test_local_statistics_stay_with_the_local_head(name: str, policy: str, stays: Select) -> None:
    algorithm, _, _ = wrap(name, HEAD, BODY, BUFFER, head=policy, buffers="local")
    assert algorithm == Local(algorithms.get(name), stays)


def test_shared_head_may_be_all_that_is_trained() -> None:
    assert wrap("fedper", HEAD, head="shared")[0] == SharedHead(algorithms.get("fedper"))


def test_local_statistics_need_statistics() -> None:
    assert wrap("fedavg", HEAD, BODY, buffers="local")[0] == algorithms.get("fedavg")


def test_shared_head_and_local_statistics_go_together() -> None:
    algorithm, _, _ = wrap("fedrep", HEAD, BODY, BUFFER, head="shared", buffers="local")
    assert algorithm == Local(SharedHead(algorithms.get("fedrep")), buffer)


@pytest.mark.parametrize(
    ("name", "tensors", "model", "words"),
    [
        ("fedrep", [BODY], {}, ["no task head", "nothing would be kept", "take fedavg"]),
        ("fedrep", [HEAD, BODY], {"head": "frozen"}, ["the head is frozen", "nothing would be kept"]),
        ("fedper", [HEAD], {}, ["nothing else is trained", "nothing would be sent", "take local"]),
        ("lg-fedavg", [HEAD], {}, ["nothing but the head is trained", "nothing would be kept"]),
        ("lg-fedavg", [HEAD, BODY], {"head": "frozen"}, ["the head is frozen", "nothing would be sent"]),
        ("lg-fedavg", [BODY], {}, ["no task head", "nothing would be sent"]),
    ],
)
def test_half_of_a_division_is_refused(name: str, tensors: list[str], model: dict[str, Any], words: list[str]) -> None:
    ((path, message),) = told(lambda: wrap(name, *tensors, **model))
    assert path == "algorithm.name"
    assert [word for word in words if word not in message] == []


def test_method_that_sends_the_head_alone_refuses_a_local_one() -> None:
    with pytest.raises(ConfigError, match="lg-fedavg: it sends the head alone") as caught:
        wrap("lg-fedavg", HEAD, BODY, head="local")
    assert [problem.path for problem in caught.value.problems] == ["model.head"]


@pytest.mark.parametrize("policy", ["local", "shared", "frozen"])
def test_local_trains_whatever_there_is(policy: str) -> None:
    assert wrap("local", HEAD, BODY, head=policy)[1] == policy
    assert wrap("local", BODY)[1] is None


@pytest.mark.parametrize("section", [{"robust": {"rule": "clip"}}, {"server": {"optimizer": "sgd"}}])
def test_method_that_sends_nothing_refuses_the_server(section: dict[str, Any]) -> None:
    config = load({"algorithm": {"name": "local"}, "clients": {"min_clients": 3}, **section})
    with pytest.raises(ConfigError, match="local: it sends nothing"):
        make_algorithm(config)


@pytest.mark.parametrize(
    ("source", "batch", "told"), [("builtin:linear", 4, True), ("builtin:linear", 8, False), ("rows.jsonl", 4, False)]
)
def test_rows_of_a_gradient_step_are_known_for_the_builtin_problem_alone(source: str, batch: int, told: bool) -> None:
    problem: dict[str, Any] = {"problem": {"clients": 3, "rows": 8, "inputs": 4}}
    if source != "builtin:linear":
        problem = {"partition": {"kind": "iid", "clients": 3}}
    train = {"optimizer": "sgd", "lr": 0.2, "max_grad_norm": 0.0, "batch_size": batch}
    sections = {"model": {"name": "builtin:linear"}, "task": {"kind": "linear"}, "data": {"source": source}}
    config = load({"algorithm": {"name": "rolora-linear"}, **sections, "train": train, **problem}, check_paths=False)
    assert [problem.path for problem in _no_gradient_step(config)] == ["train.batch_size"] * told
