"""The laws, one function each. A law raises :class:`LawBroken` or :class:`NotApplicable`, or returns its measurement.

A law runs on the problem that it is given, or on :class:`rondo.testing.testbed.TwoLayers` from its seed: two
adapted layers, one of them not square, scales other than 1, unequal weights, a shared head.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from rondo import algorithms
from rondo.algorithm import Algorithm, Mean, Upload
from rondo.algorithms.formulas import WholeNumbers
from rondo.engine.server.ledger import Ledger
from rondo.engine.wire import serialization
from rondo.engine.wire.parcel import sent_digest
from rondo.params import AUXILIARY_PREFIX, Params, Select, body, buffer, down, head, nothing, pick, up, whole
from rondo.testing.laws_of_runs import (
    law_cohort,
    law_lost_local,
    law_no_leak,
    law_no_mutation,
    law_same_seed,
    law_skipped_attempts,
    law_state_survives,
    law_wrapping,
)
from rondo.testing.run import ROUNDS, NotApplicable, Run, largest_gap, require
from rondo.testing.testbed import Testbed

TOLERANCE = 1e-9
"""Largest absolute difference that laws about values allow, in float64 on tensors of order 1."""

Formulas = tuple[algorithms.Numbers, algorithms.Numbers]
"""Numbers sent up and numbers sent down per module, from (rank, in, out, round index, uploads of a round)."""

Law = Callable[[Algorithm[Any], int, Testbed | None], str]
"""From (algorithm, seed, problem or None for :class:`rondo.testing.testbed.TwoLayers`) to the measurement."""


def _rounds(algorithm: Algorithm[Any], seed: int, problem: Testbed | None) -> Iterator[tuple[Run, int, list[Upload]]]:
    """A run before it aggregates each of its rounds, the round's index and its uploads."""
    run = Run(algorithm, seed, problem)
    for index in range(ROUNDS):
        outcomes = [run.train([c], index)[0] for c in run.clients]
        yield run, index, [o.upload for o in outcomes]
        run.finish(outcomes, index)


def _agree(
    algorithm: Algorithm[Any],
    seed: int,
    problem: Testbed | None,
    pair: Callable[[list[Upload]], tuple[list[Upload], list[Upload]]],
    what: str,
) -> str:
    """Check in every round that both lists of uploads that ``pair`` makes of the round's give the same model."""
    worst = 0.0
    for run, index, uploads in _rounds(algorithm, seed, problem):
        one, other = (algorithm.aggregate(run.state, given, run.round(index)) for given in pair(uploads))
        worst = max(worst, run.gap(one, other, index + 1))
        require(worst < TOLERANCE, f"round {index}: {what}: the model differs by {worst:.1e}")
    return f"difference {worst:.0e}"


def law_form(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """A frozen dataclass that declares its traits. After every round its view has finite A (r, in) and B (out, r) for
    every layer, and all whole tensors in their shapes."""
    require(dataclasses.is_dataclass(algorithm), "it is not a dataclass")
    require(algorithm.__dataclass_params__.frozen, "its dataclass is not frozen")  # type: ignore[attr-defined]
    require(hasattr(algorithm, "traits"), "it declares no traits: traits = Traits(exact=...)")
    weighs = type(algorithm).weight_of is not Algorithm.weight_of
    require(weighs or algorithm.traits.weighting != "tensors", "it weighs uploads by their tensors without weight_of")
    run = Run(algorithm, seed, problem)
    for index in range(ROUNDS):
        run.step(index)
        shared = run.shared(run.clients[0], index + 1)
        _must_fit(algorithm.view(shared, run.local(run.clients[0], shared)), run.problem, index)
    return "A (r, in), B (out, r)"


def _must_fit(seen: Params, problem: Testbed, index: int) -> None:
    """The tensors ``seen`` after round ``index`` must be finite and fit the layers of ``problem``."""
    for path, weight in problem.weights.items():
        a, b = (tuple(seen[f"{path}.{factor}"].shape) for factor in "AB")
        require(
            a[1] == weight.shape[1],
            f"round {index}: {path}.A is {a}, its module has {weight.shape[1]} inputs",
        )
        require(
            b[0] == weight.shape[0],
            f"round {index}: {path}.B is {b}, its module has {weight.shape[0]} outputs",
        )
        require(a[0] == b[1], f"round {index}: {path}: A has rank {a[0]}, B has rank {b[1]}")
    for name, tensor in pick(problem.params, whole).items():
        shape, start = tuple(seen[name].shape) if name in seen else "missing", tuple(tensor.shape)
        require(shape == start, f"round {index}: {name} is {shape} in the view, and {start} at the start")
    require(all(bool(t.isfinite().all()) for t in seen.values()), f"round {index}: the view is not finite")


def law_first_round_learns(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """The first round's training moves every layer (with B = 0, training A alone would not), and every whole tensor of
    the body."""
    run = Run(algorithm, seed, problem)
    for outcome in run.step(0):
        for name, before in pick(outcome.before, body).items():
            moved = float((outcome.after[name] - before).abs().max())
            require(moved > 1e-6, f"{name}: the first round moved it by {moved:.1e}")
    return ""


def law_permutation(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """The order in which uploads arrive does not change the model."""
    return _agree(algorithm, seed, problem, lambda uploads: (uploads, uploads[::-1]), "uploads in reverse order")


def law_weight_scale(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """Only the ratios of the weights count."""

    def scaled(uploads: list[Upload]) -> tuple[list[Upload], list[Upload]]:
        return uploads, [replace(u, weight=17 * u.weight) for u in uploads]

    return _agree(algorithm, seed, problem, scaled, "weights times 17")


def law_weights_count(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """An upload of weight 2 counts as much as the same upload twice with weight 1. Not for algorithms whose clients are
    sent the others' uploads."""

    if algorithm.traits.server == "others":
        raise NotApplicable("a client is sent what the others uploaded, and a second upload is another client's")

    def doubled(uploads: list[Upload]) -> tuple[list[Upload], list[Upload]]:
        a, b, *_ = (replace(u, weight=1.0) for u in uploads)
        twin = replace(a, client=replace(a.client, id="twin"))
        return [replace(a, weight=2.0), b], [a, twin, b]

    what = "one upload of weight 2 against two of weight 1 (are weights ignored?)"
    return _agree(algorithm, seed, problem, doubled, what)


def law_linear(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """The weighted mean of the raw uploads is all that the server needs, and all clients are sent the same. Only for
    algorithms that are linear, and clients without ranks of their own."""
    if not algorithm.linear:
        raise NotApplicable("the algorithm is not linear")
    if any(c.rank is not None for c in Run(algorithm, seed, problem).clients):
        raise NotApplicable("clients have ranks of their own")
    worst = 0.0
    for run, index, uploads in _rounds(algorithm, seed, problem):
        sent = {sent_digest(run.shared(c, index), c, run.round(index)) for c in run.clients}
        require(len(sent) == 1, f"round {index}: clients are sent different tensors, and no masks hide the difference")
        mass = math.fsum(u.weight for u in uploads)
        sums = {n: sum(u.weight / mass * u.params[n].double() for u in uploads) for n in uploads[0].params}
        mean = Mean({n: torch.as_tensor(t) for n, t in sums.items()}, mass, len(uploads))
        one = algorithm.finish(run.state, mean, run.round(index))
        other = algorithm.aggregate(run.state, uploads, run.round(index))
        worst = max(worst, run.gap(one, other, index + 1))
        require(worst < TOLERANCE, f"round {index}: from the sum of the raw uploads, the model differs by {worst:.1e}")
    return f"difference {worst:.0e}"


def law_whole_tensors(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """A whole tensor that clients send, of the head or of the body, becomes its weighted mean."""
    worst, seen = 0.0, False
    for run, index, uploads in _rounds(algorithm, seed, problem):
        mass = math.fsum(u.weight for u in uploads)
        new = algorithm.aggregate(run.state, uploads, run.round(index))
        after = algorithm.broadcast(new, run.clients[0], run.round(index + 1)).params
        expanded = [algorithm.expand(run.state, u).params for u in uploads]
        for name in pick(expanded[0], whole):
            shares = [u.weight / mass * params[name].double() for u, params in zip(uploads, expanded, strict=True)]
            mean = torch.stack(shares).sum(0)
            worst, seen = max(worst, largest_gap({name: mean}, {name: after[name].double()})), True
            require(worst < TOLERANCE, f"round {index}: {name} is {worst:.1e} away from the clients' weighted mean")
    if not seen:
        raise NotApplicable("no client sends a whole tensor")
    return f"difference {worst:.0e}"


def law_consensus(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """If all clients end at the same model, the new model is that model. Tried in place of each round of a run. Not for
    algorithms that say that they are lossy, or that clients are sent the others' uploads."""
    if algorithm.traits.lossy:
        raise NotApplicable("the algorithm says that it is lossy")
    if algorithm.traits.server == "others":
        raise NotApplicable("a client is sent what the others uploaded, so clients that agree do not stay")
    run, worst = Run(algorithm, seed, problem), 0.0
    for index in range(ROUNDS):
        before = run.state, run.locals
        reached = run.train([run.clients[0]], index)[0]
        same = [replace(reached.upload, client=c, weight=float(c.num_examples)) for c in run.clients]
        run.state = algorithm.aggregate(run.state, same, run.round(index))
        run.locals = {c.id: reached.local for c in run.clients}
        worst = max(worst, largest_gap(reached.after, run.model(run.clients[0], index + 1)))
        require(worst < TOLERANCE, f"round {index}: the new model is {worst:.1e} away from the one that all reached")
        run.state, run.locals = before
        run.step(index)
    return f"difference {worst:.0e}"


def law_zero_steps(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """A round without training steps leaves every model as it was. Tried in place of each round of a run."""
    run, worst = Run(algorithm, seed, problem), 0.0
    steps = run.steps
    for index in range(ROUNDS):
        before = run.state, run.locals
        run.steps = 0
        run.step(index)
        worst = max(worst, run.gap(before[0], run.state, index + 1))
        require(worst < TOLERANCE, f"round {index} without a step moved the model by {worst:.1e}")
        (run.state, run.locals), run.steps = before, steps
        run.step(index)
    return f"difference {worst:.0e}"


def law_exact(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """The new model's change is the weighted mean of the clients' changes, with unequal weights and partial
    participation, in every round. Only for algorithms that claim to be exact, and on factors only if they need them."""
    if not algorithm.traits.exact:
        raise NotApplicable("the algorithm does not claim to be exact")
    run, worst = Run(algorithm, seed, problem), 0.0
    if run.problem.weights and not algorithm.traits.needs_factors:
        raise NotApplicable("the algorithm claims to be exact for whole tensors alone")
    for index in range(ROUNDS):
        outcomes = run.step(index, run.clients if index % 2 == 0 else run.clients[::2])
        mass = sum(o.upload.client.num_examples for o in outcomes)
        new = pick(run.model(outcomes[0].upload.client, index + 1), body & ~buffer)
        mean = {
            n: sum((o.upload.client.num_examples / mass * o.after[n] for o in outcomes), torch.zeros_like(t))
            for n, t in new.items()
        }
        worst = max(worst, largest_gap(mean, new))
        require(worst < TOLERANCE, f"round {index}: the model is {worst:.1e} away from the mean of the clients'")
    return f"difference {worst:.0e}"


def law_frozen_stay(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """A tensor in no upload is bit-identical after the round, except for factors if the server re-expresses them."""
    run = Run(algorithm, seed, problem)
    for index in range(ROUNDS):
        before = dict(run.shared(run.clients[0], index).params)
        if not algorithm.traits.same_coordinates:
            before = pick(before, ~(down | up))
        state_before = run.state
        uploaded = {n for o in run.step(index) for n in algorithm.expand(state_before, o.upload).params}
        after = run.shared(run.clients[0], index + 1).params
        for name in before.keys() & after.keys() - uploaded:
            require(
                serialization.same(before[name], after[name]), f"round {index} changed {name}, which nobody uploaded"
            )
    return ""


def law_bytes(
    algorithm: Algorithm[Any],
    seed: int,
    formulas: Formulas | None = None,
    problem: Testbed | None = None,
    *,
    whole_numbers: WholeNumbers | None = None,
) -> str:
    """The numbers sent equal the card's formulas in each of eight rounds: up, and down to a client that took part in
    every round. ``whole_numbers``: the whole tensors' part, which is left out without it. A lossy algorithm may send
    less down."""
    if formulas is None:
        raise NotApplicable("no formula was given")
    run, ledger = Run(algorithm, seed, problem), Ledger()
    client, rank = run.clients[0], run.problem.rank
    uncounted = nothing if whole_numbers is not None else whole
    sizes = [sum(t.numel() for t in pick(run.problem.params, part).values()) for part in (body & ~buffer, buffer, head)]
    beside = 0 if whole_numbers is None else whole_numbers(*sizes)
    for index in range(run.round(0).total):
        shared = run.shared(client, index)
        received, _ = ledger.send(client.id, replace(shared, params=_without(shared.params, uncounted)))
        upload = next(o.upload for o in run.step(index) if o.upload.client == client)
        sent = ledger.receive(replace(upload, params=_without(upload.params, uncounted)))
        directions = [("up", sent, formulas[0])]
        if index > 0:
            directions.append(("down", received, formulas[1]))
        for way, size, formula in directions:
            count = size // torch.float64.itemsize
            expected = beside + sum(
                formula(rank, w.shape[1], w.shape[0], index, len(run.clients)) for w in run.problem.weights.values()
            )
            less = way == "down" and algorithm.traits.lossy and count < expected
            require(count == expected or less, f"round {index}: {count} numbers {way}, the formula says {expected}")
    return ""


def _without(params: Params, uncounted: Select) -> Params:
    """``params`` without some tensors, and without a method's own numbers about them."""
    return pick(params, lambda name: not uncounted(name.removeprefix(AUXILIARY_PREFIX)))


LAWS: dict[str, Law] = {
    "form": law_form,
    "first round learns": law_first_round_learns,
    "permutation": law_permutation,
    "weight scale": law_weight_scale,
    "weights count": law_weights_count,
    "raw sum": law_linear,
    "whole tensors": law_whole_tensors,
    "consensus": law_consensus,
    "zero steps": law_zero_steps,
    "exactness": law_exact,
    "frozen stay frozen": law_frozen_stay,
    "no mutation": law_no_mutation,
    "state survives": law_state_survives,
    "same seed": law_same_seed,
    "lost local": law_lost_local,
    "skipped attempts": law_skipped_attempts,
    "no leak": law_no_leak,
    "cohort": law_cohort,
    "wrapping": law_wrapping,
}
