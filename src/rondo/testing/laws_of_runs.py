"""The laws about how a round may be run: in what order, with whom, again, from a saved state, within a wrapper."""

from __future__ import annotations

import copy
import math
from typing import Any

from rondo.algorithm import Algorithm
from rondo.algorithms.wrappers.wrapper import Wrapper
from rondo.engine.wire import serialization
from rondo.testing.run import ROUNDS, Run, largest_gap, require
from rondo.testing.testbed import Testbed


def law_no_mutation(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """No argument is modified in place."""
    run = Run(algorithm, seed, problem)
    original = copy.deepcopy(dict(run.problem.params))
    algorithm.init(run.problem.params, run.problem.weights, run.round(0))
    require(serialization.same(original, dict(run.problem.params)), "init changed the parameters that it was given")
    for index in range(ROUNDS):
        before = copy.deepcopy((run.state, run.locals))
        outcomes = [run.train([c], index)[0] for c in run.clients]
        require(
            serialization.same(before, (run.state, run.locals)), "client_update changed the state or what clients keep"
        )
        uploads = [o.upload for o in outcomes]
        uploads_before = copy.deepcopy(uploads)
        new_state = algorithm.aggregate(run.state, uploads, run.round(index))
        require(serialization.same(before[0], run.state), "aggregate changed the state that it was given")
        require(serialization.same(uploads_before, uploads), "aggregate changed an upload")
        run.state = new_state
        run.locals = {o.upload.client.id: o.local for o in outcomes}
    return ""


def law_state_survives(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """The state survives safetensors bit for bit, and a round from the restored state gives the same bits."""
    run, other = Run(algorithm, seed, problem), Run(algorithm, seed, problem)
    for index in range(ROUNDS):
        other.state = serialization.unpack(serialization.pack(run.state), run.state)
        require(serialization.same(run.state, other.state), "the state that was read back differs from the one saved")
        for one in (run, other):
            one.step(index)
        require(serialization.same(run.state, other.state), f"round {index} from the state that was read back differs")
    return ""


def law_same_seed(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """The same seed gives the same bits."""
    runs = [Run(algorithm, seed, problem), Run(algorithm, seed, problem)]
    for run in runs:
        for index in range(ROUNDS):
            run.step(index)
    require(serialization.same(runs[0].state, runs[1].state), "two runs from one seed differ")
    return ""


def law_skipped_attempts(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """A skipped attempt leaves no trace: with attempts skipped in between, a run has the same bits."""
    plain, interrupted = Run(algorithm, seed, problem), Run(algorithm, seed, problem)
    for index in range(ROUNDS):
        if index % 3 != 2:
            for client in interrupted.clients[: 1 + index % 2]:
                interrupted.train([client], index)  # too few uploads come, so they are thrown away
            interrupted.skipped += 1 + index % 2
        for run in (plain, interrupted):
            run.step(index)
        same = serialization.same((plain.state, plain.locals), (interrupted.state, interrupted.locals))
        require(same, f"round {index} after {interrupted.skipped} skipped attempts differs from the same without any")
    return ""


def law_lost_local(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """A client that lost its local tensors takes part again as a new one."""
    run = Run(algorithm, seed, problem)
    for index in range(ROUNDS):
        run.step(index)
        run.locals.clear()
        finite = all(bool(t.isfinite().all()) for t in run.model(run.clients[0], index + 1).values())
        require(finite, f"after round {index} and the loss the model is not finite")
    return ""


def law_no_leak(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """A client's result does not depend on the clients trained before it."""
    run = Run(algorithm, seed, problem)
    first, last = run.clients[0], run.clients[-1]
    for index in range(ROUNDS):
        results = []
        for order in ([last], [first, last], [first, first, last]):
            for client in order:
                outcome = run.train([client], index)[0]
            results.append((dict(outcome.upload.params), dict(outcome.local)))
        same = all(serialization.same(results[0], r) for r in results[1:])
        require(same, f"round {index}: training another client first changed the result")
        run.step(index)
    return ""


def law_cohort(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """Client code is batch-transparent: a client gets the same result in a cohort as alone."""
    run, worst = Run(algorithm, seed, problem), 0.0
    for index in range(ROUNDS):
        together = run.train(run.clients, index)
        for one, other in zip(together, run.step(index), strict=True):
            require(
                one.upload.client == other.upload.client
                and math.isclose(one.upload.weight, other.upload.weight, rel_tol=1e-12),
                f"client {other.upload.client.id} uploads with weight {one.upload.weight} in a cohort, "
                f"{other.upload.weight} alone",
            )
            worst = max(worst, largest_gap(one.upload.params, other.upload.params), largest_gap(one.local, other.local))
    require(worst < 1e-12, f"a cohort and its clients one at a time differ by {worst:.1e}")
    return f"difference {worst:.0e}"


def law_wrapping(algorithm: Algorithm[Any], seed: int, problem: Testbed | None = None) -> str:
    """An empty wrapper changes nothing: neither traits, uploads, local tensors, states nor models."""
    wrapped: Algorithm[Any] = Wrapper(algorithm)
    for alone, inside in ((algorithm.traits, wrapped.traits), (algorithm.linear, wrapped.linear)):
        require(alone == inside, f"{alone!r} becomes {inside!r} inside a wrapper that changes nothing")
    runs = [Run(algorithm, seed, problem), Run(wrapped, seed, problem)]
    for index in range(ROUNDS):
        outcomes = [run.step(index) for run in runs]
        for unwrapped, inside in zip(*outcomes, strict=True):
            require(
                serialization.same(unwrapped.upload, inside.upload),
                f"round {index}: the wrapped algorithm uploads differently",
            )
        for part in ("state", "locals"):
            same = serialization.same(getattr(runs[0], part), getattr(runs[1], part))
            require(same, f"round {index}: the {part} of the wrapped algorithm differ")
        models = [run.model(run.clients[0], index + 1) for run in runs]
        require(serialization.same(*models), f"round {index}: the model of the wrapped algorithm differs")
    return ""
