"""Compressed uploads around every method that takes them: the laws, the bytes, and what a client holds back."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from rondo import algorithms
from rondo.algorithm import Algorithm, Client, Round, Upload
from rondo.algorithms.compatible import refused
from rondo.algorithms.factors.rolora import RoLoRA
from rondo.algorithms.table import TABLE
from rondo.algorithms.trial import trial_upload
from rondo.algorithms.whole.fedavg import FedAvg
from rondo.algorithms.wrappers.compressed import Compressed, Packing, Rounding, TopK
from rondo.algorithms.wrappers.local import Local
from rondo.engine.wire import serialization
from rondo.params import Params, buffer, num_bytes
from rondo.roles import HELD_PREFIX
from rondo.testing.laws import LAWS
from rondo.testing.run import NotApplicable, Run

PACKINGS: dict[str, Packing] = {"8 bits": Rounding(8), "4 bits": Rounding(4), "top-k": TopK(0.2)}
MADE = {n: algorithms.get(n) for n in TABLE}


def taken(algorithm: Algorithm[Any], packing: Packing) -> bool:
    return packing.option not in refused(algorithm.traits, linear=algorithm.linear)


ALLOWED = [(n, p) for n, a in MADE.items() for p in PACKINGS if taken(a, PACKINGS[p]) and not a.traits.least_squares]
"""Methods that solve least squares are for another problem than this file's networks."""
REFUSED = [(n, p) for n, a in MADE.items() for p in PACKINGS if not taken(a, PACKINGS[p])]
ORDINARY = ("rolora", "florg")
MARKED = [pytest.param(n, p, marks=() if n in ORDINARY else pytest.mark.slow) for n, p in ALLOWED]

OF_WHOLE_NUMBERS = ("raw sum", "consensus", "exactness", "whole tensors")
"""Laws of uploads that are not packed."""


@pytest.mark.parametrize("law", [n for n in LAWS if n not in OF_WHOLE_NUMBERS])
@pytest.mark.parametrize(("name", "packing"), MARKED)
@pytest.mark.sweep(5)
def test_laws_hold(name: str, packing: str, law: str) -> None:
    if packing == "top-k" and law == "zero steps":
        pytest.skip("a client without a step sends what it held back")
    try:
        LAWS[law](Compressed(MADE[name], PACKINGS[packing]), 0)
    except NotApplicable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(("name", "packing"), REFUSED)
def test_other_methods_are_refused(name: str, packing: str) -> None:
    with pytest.raises(ValueError):
        Compressed(MADE[name], PACKINGS[packing])


@pytest.mark.parametrize(("name", "packing"), MARKED)
def test_upload_has_the_bytes_promised(name: str, packing: str) -> None:
    plain, packed = Run(MADE[name], 1), Run(Compressed(MADE[name], PACKINGS[packing]), 1)
    for index in range(2):
        whole = plain.train(plain.clients[:1], index)[0].upload.params
        sent = packed.train(packed.clients[:1], index)[0].upload.params
        expected = 0
        for tensor_name, tensor in whole.items():
            count = tensor.numel()
            if not tensor.is_floating_point() or buffer(tensor_name):
                expected += count * tensor.element_size()
            elif packing == "top-k":
                expected += math.ceil(0.2 * count) * (tensor.element_size() + 2)
            else:
                expected += math.ceil(count / (1 if packing == "8 bits" else 2)) + 4 * math.ceil(count / 256)
        assert num_bytes(sent) == expected


@pytest.mark.parametrize(("name", "packing"), MARKED)
def test_upload_that_learned_nothing_unpacks_to_itself(name: str, packing: str) -> None:
    run = Run(Compressed(MADE[name], PACKINGS[packing]), 0)
    inner = Run(MADE[name], 0)
    run.step(0)
    client, round, state = run.clients[0], run.round(1), run.state
    sent = trial_upload(run.algorithm, run.algorithm.broadcast(state, client, round), client, round)
    shared = inner.algorithm.broadcast(state.inner, client, round)
    nothing = trial_upload(inner.algorithm, shared, client, round)
    expected = inner.algorithm.expand(state.inner, nothing)
    assert serialization.same(dict(run.algorithm.expand(state, sent).params), dict(expected.params))


@pytest.mark.parametrize("packing", PACKINGS)
def test_unpacked_upload_stays_as_it_is(packing: str) -> None:
    """Diagnostics aggregate uploads that were unpacked before."""
    run = Run(Compressed(MADE["fedit"], PACKINGS[packing]), 0)
    unpacked = run.algorithm.expand(run.state, run.train(run.clients[:1], 0)[0].upload)
    assert run.algorithm.expand(run.state, unpacked) == unpacked


# --- what a client holds back -------------------------------------------------------------------------------------


def test_numbers_that_were_sent_and_held_back_sum_to_the_change() -> None:
    """Over rounds, nothing is lost: the changes sent plus what is still held are the changes trained."""
    run, algorithm = Run(Compressed(MADE["fedit"], TopK(0.2)), 0), MADE["fedit"]
    client = run.clients[0]
    local: Params = {}
    trained: dict[str, torch.Tensor] = {}
    sent: dict[str, torch.Tensor] = {}
    for index in range(4):
        shared = run.algorithm.broadcast(run.state, client, run.round(index))
        held = local or run.algorithm.local_init(shared, client)
        plain = Run(algorithm, 0)
        plain.state = run.state.inner
        upload = plain.train([client], index)[0].upload.params
        run.locals[client.id] = held
        (outcome,) = run.train([client], index)
        unpacked = run.algorithm.expand(run.state, outcome.upload).params
        for name, tensor in upload.items():
            start = run.state.params[name]
            trained[name] = trained.get(name, 0) + (tensor - start)
            sent[name] = sent.get(name, 0) + (unpacked[name] - start)
        local = outcome.local
        run.finish([outcome], index)
    for name, change in trained.items():
        torch.testing.assert_close(sent[name] + local[HELD_PREFIX + name], change, rtol=0, atol=1e-9)
        assert local[HELD_PREFIX + name].abs().max() > 0


def test_factor_that_does_not_travel_keeps_its_own_rest() -> None:
    """RoLoRA sends B in even rounds and A in odd ones: each has a rest of its own, which waits for its turn."""
    run = Run(Compressed(RoLoRA(), TopK(0.2)), 0)
    rests = []
    for index in range(3):
        outcomes = run.train(run.clients, index)
        rests.append(outcomes[0].local)
        run.finish(outcomes, index)
    names = [n for n in rests[0] if n.startswith(HELD_PREFIX)]
    for name in (n for n in names if n.endswith(".A")):
        assert rests[0][name].eq(0).all()
        assert rests[1][name].abs().max() > 0
        assert rests[2][name].equal(rests[1][name])
    for name in (n for n in names if n.endswith(".B")):
        assert rests[0][name].abs().max() > 0
        assert rests[1][name].equal(rests[0][name])
        assert not rests[2][name].equal(rests[1][name])


def test_rest_is_in_no_model() -> None:
    run = Run(Compressed(MADE["fedit"], TopK(0.2)), 0)
    run.step(0)
    client = run.clients[0]
    shared = run.algorithm.broadcast(run.state, client, run.round(1))
    held = run.locals[client.id]
    assert [n for n in held if n.startswith(HELD_PREFIX)] != []
    assert serialization.same(run.algorithm.view(shared, held), run.algorithm.view(shared, {}))


def test_rest_goes_with_a_head_of_ones_own() -> None:
    run = Run(Compressed(Local(MADE["fedit"]), TopK(0.2)), 1)
    run.step(0)
    local = run.locals[run.clients[0].id]
    assert {n for n in local if n.startswith("head:")}
    assert {n for n in local if n.startswith(HELD_PREFIX + "head:")} == set()


def test_rounding_keeps_nothing_at_clients() -> None:
    run = Run(Compressed(MADE["fedit"], Rounding(4)), 0)
    run.step(0)
    assert not any(run.locals.get(c.id) for c in run.clients)


# --- traits -------------------------------------------------------------------------------------------------------


@pytest.mark.sweep(10)
@pytest.mark.parametrize(
    "name", [n for n, a in MADE.items() if taken(a, PACKINGS["top-k"]) and not a.traits.least_squares]
)
def test_numbers_held_back_are_of_tensors_that_go_on(name: str) -> None:
    """A method that takes top-k puts no other tensor in the place of an averaged one: with clients that send what they
    received, nothing moves, for as many rounds as any method waits with a restart."""
    algorithm, run = MADE[name], Run(MADE[name], 0)
    for index in range(12):
        client, round = run.clients[0], run.round(index)
        shared = algorithm.broadcast(run.state, client, round)
        upload = trial_upload(algorithm, shared, client, round)
        upload = Upload(client, upload.params, 1.0)
        new = algorithm.aggregate(run.state, [upload], round)
        for tensor_name in upload.params:
            torch.testing.assert_close(new.params[tensor_name], run.state.params[tensor_name], rtol=0, atol=1e-12)
        run.step(index)


@pytest.mark.parametrize("name", [n for n, a in MADE.items() if a.traits.server == "restart"])
def test_methods_that_renew_factors_do(name: str) -> None:
    """So that the trait is not claimed in vain: in some round, the mean is not what comes out."""
    algorithm, run, moved = MADE[name], Run(MADE[name], 0), False
    for index in range(12):
        client, round = run.clients[0], run.round(index)
        upload = trial_upload(algorithm, algorithm.broadcast(run.state, client, round), client, round)
        new = algorithm.aggregate(run.state, [Upload(client, upload.params, 1.0)], round)
        moved |= any(not new.params[n].allclose(t) for n, t in run.state.params.items() if n.endswith((".A", ".B")))
        run.step(index)
    assert moved


def test_statistics_and_integers_travel_as_they_are() -> None:
    params = {"w": torch.ones(300), "buffer:n.running_var": torch.ones(3), "buffer:n.count": torch.tensor(3)}
    algorithm = Compressed(FedAvg(), Rounding(4))
    state = algorithm.init(params, {}, Round(0, 1, 0, 1))
    client = Client("a", 1)
    sent = trial_upload(algorithm, algorithm.broadcast(state, client, Round(0, 1, 0, 1)), client, Round(0, 1, 0, 1))
    assert sent.params.keys() == {*params, "scales:w"}
    assert [n for n in params if n != "w" and not sent.params[n].equal(params[n])] == []
