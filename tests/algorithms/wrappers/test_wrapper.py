"""Wrappers pass on what they are given."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest
import torch

from rondo import algorithms
from rondo.algorithm import Client, Fit, FitOptions, Round, Shared, Upload
from rondo.algorithms.wrappers.local import Local, LocalState, SharedHead, _Beside
from rondo.algorithms.wrappers.wrapper import Wrapper
from rondo.params import Select, add_client_axis, body, everything, head, pick
from rondo.testing import SgdTrainer
from rondo.testing.run import BODY, HEAD, RegressionTestbed

ARGUMENTS = {
    "init": 3,
    "broadcast": 3,
    "local_init": 2,
    "client_update": 3,
    "adapt": 3,
    "expand": 2,
    "weight_of": 2,
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


def test_linear_method_folds_the_uploads_into_a_mean() -> None:
    """By the wrapper's own ``expand`` and ``finish``, which a final class may have changed."""
    inner: Any = Mock(linear=True)
    inner.expand.side_effect = lambda state, upload: upload
    state, round = object(), Round(2, 8, 0, 3)
    sent = [Upload(Client("ann", 1), {BODY: torch.full((2,), value)}, weight) for value, weight in ((1.0, 1), (4.0, 2))]
    assert Wrapper(inner).aggregate(state, sent, round) is inner.finish.return_value
    assert [call.args for call in inner.expand.call_args_list] == [(state, upload) for upload in sent]
    (given, mean, at), _ = inner.finish.call_args
    assert (given, at, mean.weight, mean.count, mean.params[BODY].tolist()) == (state, round, 3.0, 2, [3.0, 3.0])
    inner.aggregate.assert_not_called()


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
    shared = Shared(RegressionTestbed.make(0, factors=False).params)
    locals_ = [a.local_init(shared, Client("ann", 6)) for a in (algorithm, SharedHead(algorithm))]
    assert [set(held) for held in locals_] == [kept, left]
    assert (algorithm.traits.personal, SharedHead(algorithm).traits.personal) == (True, bool(left))


@pytest.mark.parametrize("given", [None, torch.ones(1)], ids=["default", "own"])
def test_local_tensors_leave_the_uploads_weight(given: Any) -> None:
    """HetLoRA's clients weigh their uploads themselves."""
    problem = RegressionTestbed.make(0, factors=False)

    def client_update(shared: Shared, local: Any, trainer: Any) -> Any:
        return trainer.upload({BODY: problem.params[BODY]}, given), {}

    inner, trainer = Mock(client_update=client_update), Mock()
    uploads, _ = Local(inner).client_update(Shared(problem.params), {HEAD: problem.params[HEAD]}, trainer)
    assert uploads is trainer.upload.return_value
    trainer.upload.assert_called_once_with({BODY: problem.params[BODY]}, given)


@pytest.mark.parametrize(("name", "fitted"), [("fedavg", head), ("lg-fedavg", everything)])
def test_new_client_fits_its_local_tensors(name: str, fitted: Select) -> None:
    """Beside those that the wrapped method fits, or alone where it has none to fit."""
    problem = RegressionTestbed.make(0, factors=False)
    client, round = problem.clients[0], Round(8, 8, 0, 3)
    params = add_client_axis(problem.params)
    algorithm = Local(algorithms.get(name))
    local = pick(params, fitted)
    adapted = algorithm.adapt(Shared(params), local, SgdTrainer((client,), round, problem.loss))
    by_hand = SgdTrainer((client,), round, problem.loss).fit(params, train=fitted).params
    assert adapted.keys() == local.keys()
    for n in local:
        torch.testing.assert_close(adapted[n], by_hand[n], rtol=0, atol=1e-14)
        assert not adapted[n].equal(params[n])


OWN, OTHER = ({BODY: torch.full((2,), value), HEAD: torch.full((2,), value + 1)} for value in (1.0, 5.0))
BASE: Any = {"plain": object()}


def without_head(shared: Shared) -> None:
    """Check that ``shared`` is ``OWN`` without what stays, and with its base."""
    assert (shared.params, shared.base) == (pick(OWN, body), BASE)


@pytest.mark.parametrize("method", ["expand", "weight_of", "finish", "aggregate"])
def test_local_tensors_leave_the_server_its_arguments(method: str) -> None:
    inner: Any = Mock()
    state = LocalState("the inner state", pick(OWN, head))
    rest = [object() for _ in range(ARGUMENTS[method] - 1)]
    result = getattr(Local(inner), method)(state, *rest)
    getattr(inner, method).assert_called_once_with("the inner state", *rest)
    given = getattr(inner, method).return_value
    assert result == (given if method in ("expand", "weight_of") else LocalState(given, state.start))


def test_local_tensors_are_hidden_from_the_methods() -> None:
    """Each gets everything else that it would get."""
    inner: Any = Mock()
    weights, round, client = object(), Round(2, 8, 0, 3), Client("ann", 6)
    state = Local(inner).init(OWN, weights, round)  # type: ignore[arg-type]
    inner.init.assert_called_once_with(pick(OWN, body), weights, round)
    assert state == LocalState(inner.init.return_value, pick(OWN, head))
    own = {"plain.pA": torch.ones(1)}
    inner.local_init.return_value = inner.view.return_value = own
    shared = Shared(OWN, BASE)
    assert Local(inner).local_init(shared, client) == {**own, **pick(OWN, head)}
    without_head(inner.local_init.call_args.args[0])
    assert inner.local_init.call_args.args[1:] == (client,)
    assert Local(inner).view(shared, OTHER) == {**own, **pick(OTHER, head)}
    without_head(inner.view.call_args.args[0])
    assert inner.view.call_args.args[1:] == (pick(OTHER, body),)
    inner.client_update.return_value = "the uploads", own
    assert Local(inner).client_update(shared, OTHER, Mock()) == ("the uploads", {**own, **pick(OTHER, head)})
    without_head(inner.client_update.call_args.args[0])
    assert inner.client_update.call_args.args[1] == pick(OTHER, body)


def test_shared_head_leaves_the_method_its_arguments() -> None:
    inner: Any = Mock(**{"local_init.return_value": OWN})
    arguments = object(), object()
    assert SharedHead(inner).local_init(*arguments) == pick(OWN, body)  # type: ignore[arg-type]
    inner.local_init.assert_called_once_with(*arguments)


def beside() -> tuple[Any, _Beside]:
    """A trainer whose every fit gives ``OTHER``, and one around it that keeps ``OWN``'s head."""
    trainer: Any = Mock()
    trainer.fit_with.return_value = trainer.solve.return_value = Fit(OTHER, *(torch.ones(1) for _ in range(3)))
    return trainer, _Beside(trainer, head, pick(OWN, head))


def test_fit_beside_local_tensors_has_every_setting() -> None:
    trainer, around = beside()
    settings = {"epochs": 2, "steps": 3, "lr": 0.5}
    first, second = pick(OWN, body), {BODY: torch.zeros(2)}
    # The same tensors again start from the same head, others from the fitted one.
    cases = ((first, OWN), (first, OWN), (second, {**second, **pick(OTHER, head)}))
    for fits, (given, start) in enumerate(cases, 1):
        objective, project, loss = Mock(), Mock(), Mock()
        fit = around.fit(given, train=body, objective=objective, project=project, **settings)  # type: ignore[arg-type]
        at, options = trainer.fit_with.call_args.args
        assert options.objective(OTHER, loss) is objective.return_value
        objective.assert_called_once_with(pick(OTHER, body), loss.beside.return_value)
        loss.beside.assert_called_once_with(pick(OTHER, head))
        assert options.project(OTHER) is project.return_value
        project.assert_called_once_with(pick(OTHER, body))
        assert at == start
        assert options == FitOptions(body | head, options.objective, project=options.project, **settings)
        assert fit == Fit(
            pick(OTHER, body), *(getattr(trainer.fit_with.return_value, n) for n in ("steps", "examples", "loss"))
        )
        assert (around.kept, around.fits) == (pick(OTHER, head), fits)


def test_exact_steps_leave_the_local_tensors() -> None:
    """They are part of the model, and neither solved for nor returned."""
    trainer, around = beside()
    given = pick(OTHER, body)
    fit = around.solve(given, train=everything)
    trainer.solve.assert_called_once_with({**given, **pick(OWN, head)}, train=~head)
    assert (fit.params, fit.steps) == (pick(OTHER, body), trainer.solve.return_value.steps)
    assert around.kept == pick(OWN, head)


def test_second_moments_are_of_other_tensors_than_local_ones() -> None:
    trainer, around = beside()
    given = pick(OTHER, body)
    assert around.second_moment(given, of=everything) is trainer.second_moment.return_value
    trainer.second_moment.assert_called_once_with({**given, **pick(OWN, head)}, of=~head)


def test_local_tensors_leave_the_broadcast_its_round() -> None:
    problem, round = RegressionTestbed.make(0, factors=False), Round(2, 8, 0, 3)
    inner: Any = Mock(linear=True)
    inner.broadcast.return_value = Shared({BODY: problem.params[BODY]})
    client = problem.clients[0]
    state = LocalState("the inner state", {HEAD: problem.params[HEAD]})
    shared = Local(inner).broadcast(state, client, round)
    inner.broadcast.assert_called_once_with("the inner state", client, round)
    assert dict(shared.params) == problem.params
