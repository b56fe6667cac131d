"""Wrappers pass on what they are given."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch

from rondo import algorithms
from rondo.algorithm import Client, Round, Shared
from rondo.algorithms.wrappers.local import Local, LocalState
from rondo.algorithms.wrappers.shared_head import SharedHead
from rondo.algorithms.wrappers.wrapper import Wrapper
from rondo.testing.regression import BODY, HEAD, RegressionProblem

ARGUMENTS = {
    "init": 3,
    "broadcast": 3,
    "local_init": 2,
    "client_update": 3,
    "adapt": 3,
    "expand": 2,
    "finish": 3,
    "aggregate": 3,
    "view": 2,
}
"""The number of arguments of every method of an algorithm."""


@pytest.mark.parametrize("method", ARGUMENTS)
def test_method_gets_the_arguments_and_gives_the_result(method: str) -> None:
    inner: Any = Mock(linear=False)
    arguments = [object() for _ in range(ARGUMENTS[method])]
    assert getattr(Wrapper(inner), method)(*arguments) is getattr(inner, method).return_value
    getattr(inner, method).assert_called_once_with(*arguments)


@pytest.mark.parametrize(
    ("name", "kept", "left"),
    [
        ("fedper", {HEAD}, set()),
        ("fedrep", {HEAD}, set()),
        ("lg-fedavg", {BODY}, {BODY}),
        ("local", {BODY, HEAD}, {BODY}),
    ],
)
def test_shared_head_stays_with_no_client(name: str, kept: set[str], left: set[str]) -> None:
    """A method that keeps nothing else is no longer personal."""
    algorithm = algorithms.get(name)
    shared = Shared(RegressionProblem.make(0, factors=False).params)
    locals_ = [a.local_init(shared, Client("ann", 6)) for a in (algorithm, SharedHead(algorithm))]
    assert [set(held) for held in locals_] == [kept, left]
    assert (algorithm.personal, SharedHead(algorithm).personal) == (True, bool(left))


@pytest.mark.parametrize("given", [None, torch.ones(1)], ids=["default", "own"])
def test_local_tensors_leave_the_uploads_weight(given: Any) -> None:
    """HetLoRA's clients weigh their uploads themselves."""
    problem = RegressionProblem.make(0, factors=False)

    def client_update(shared: Shared, local: Any, trainer: Any) -> Any:
        return trainer.upload({BODY: problem.params[BODY]}, given), {}

    inner, trainer = Mock(client_update=client_update), Mock()
    uploads, _ = Local(inner).client_update(Shared(problem.params), {HEAD: problem.params[HEAD]}, trainer)
    assert uploads is trainer.upload.return_value
    trainer.upload.assert_called_once_with({BODY: problem.params[BODY]}, given)


def test_local_tensors_leave_the_broadcast_its_round() -> None:
    problem, round = RegressionProblem.make(0, factors=False), Round(2, 8, 0, 3)
    inner: Any = Mock(linear=True)
    inner.broadcast.return_value = Shared({BODY: problem.params[BODY]})
    client = problem.clients[0]
    state = LocalState("the inner state", {HEAD: problem.params[HEAD]})
    shared = Local(inner).broadcast(state, client, round)
    inner.broadcast.assert_called_once_with("the inner state", client, round)
    assert dict(shared.params) == problem.params
