"""Buffered rounds: equal to a plain loop over events, and to rounds where nobody is late."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rondo import algorithms
from rondo.algorithm import Algorithm, Client, Round, Upload
from rondo.algorithms.wrappers.buffered import Buffered, BufferedState
from rondo.engine.wire import serialization

CLIENTS = [Client(f"c{k}", 10 + k) for k in range(5)]
SECONDS = [1.0, 1.5, 2.25, 7.0, 40.0]


def buffered(algorithm: Algorithm[Any], at_once: int, buffer: int, staleness: float = 0.5) -> Buffered:
    def pace(client: Client, round: Round) -> tuple[float, float]:
        return SECONDS[int(client.id[1:])], 0.0

    return Buffered(algorithm, tuple(CLIENTS), at_once, buffer, staleness, pace)


def trained(x: float, k: int) -> float:
    """What client ``k`` makes of ``x``."""
    return x + 0.3 * (k - x)


def plain_loop(steps: int, buffer: int, staleness: float) -> tuple[list[float], list[float]]:
    """The model and the clock after each step where all clients train at all times, one event after the other: a
    client that is done starts again at once, at the model of that moment. After the last upload of a buffer, that is
    the new model. A client that has started from a model waits for the next one."""
    x, version, clock, models, clocks = 5.0, 0, 0.0, [], []
    events = [(SECONDS[k], k, 0, x) for k in range(5)]
    waiting, held = [], list[tuple[int, float, int, float]]()
    while version < steps:
        heapq.heapify(events)
        clock, k, began, start = heapq.heappop(events)
        held.append((k, trained(start, k) - start, began, CLIENTS[k].num_examples))
        again = [k] if began < version else []
        waiting += [] if again else [k]
        if len(held) == buffer:
            weights = np.array([weight for *_, weight in held], dtype=float)
            changes = np.array([change * (1 + version - began) ** -staleness for _, change, began, _ in held])
            x, version, held = x + float(weights @ changes / weights.sum()), version + 1, []
            again, waiting = [*again, *waiting], []
            models.append(x)
            clocks.append(clock)
        events += [(clock + SECONDS[k], k, version, x) for k in again]
    return models, clocks


def rounds(algorithm: Buffered, steps: int, save: Callable[[Any], Any] = lambda state: state) -> list[BufferedState]:
    start = {"a.A": torch.full((1, 1), 5.0, dtype=torch.float64)}
    state, states = algorithm.init(start, {}, Round(0, steps, 0, 5)), []
    for index in range(steps):
        round, x = Round(index, steps, 0, 5), float(state.params["a.A"])
        starting = algorithm.starting(state, round)
        uploads = [
            Upload(c, {"a.A": torch.full((1, 1), trained(x, k), dtype=torch.float64)}, float(c.num_examples))
            for k, c in enumerate(CLIENTS)
            if c.id in starting
        ]
        state = save(algorithm.aggregate(state, uploads, round))
        states.append(state)
    return states


@pytest.mark.parametrize("staleness", [0.0, 0.5])
@pytest.mark.parametrize("buffer", [1, 2, 3, 5])
def test_equal_to_a_loop_over_events(buffer: int, staleness: float) -> None:
    models, clocks = plain_loop(30, buffer, staleness)
    states = rounds(buffered(algorithms.get("fedit"), 5, buffer, staleness), 30)
    np.testing.assert_allclose([float(s.params["a.A"]) for s in states], models, rtol=0, atol=1e-12)
    assert [s.clock for s in states] == clocks
    assert (buffer == 5) == (max(s.staleness for s in states) == 0)


def test_state_survives_the_disk() -> None:
    algorithm = buffered(algorithms.get("fedit"), 3, 2)
    first = algorithm.init({"a.A": torch.zeros(1, 1)}, {}, Round(0, 9, 0, 5))

    def stored(state: Any) -> Any:
        return serialization.unpack(serialization.pack(state), first)

    for one, other in zip(rounds(algorithm, 9), rounds(algorithm, 9, stored), strict=True):
        assert serialization.same(one, other)


def test_places_are_filled_and_no_client_is_in_two() -> None:
    algorithm = buffered(algorithms.get("fedit"), 3, 2)
    for state in rounds(algorithm, 20):
        names = [fields[2] for fields in state.flights]
        assert len(names) == len(set(names))
        assert 1 <= len(names) <= 3


def test_lost_upload_leaves_room() -> None:
    """A client that failed is asked again, and the step takes the uploads that come after."""
    algorithm = buffered(algorithms.get("fedit"), 5, 2)
    round, state = Round(0, 9, 0, 5), algorithm.init({"a.A": torch.zeros(1, 1)}, {}, Round(0, 9, 0, 5))
    uploads = [Upload(c, {"a.A": torch.ones(1, 1)}, 1.0) for c in CLIENTS if c.id in algorithm.starting(state, round)]
    after = algorithm.aggregate(state, [u for u in uploads if u.client.id not in ("c0", "c1")], round)
    assert after.clock == 7.0
    assert {"c0", "c1"} <= set(algorithm.starting(after, Round(1, 9, 0, 5)))
    assert algorithm.aggregate(state, [], round) is state


def test_missing_turn_moves_nothing() -> None:
    """RoLoRA's clients that started at one turn upload A, later ones B: each counts for its own."""
    algorithm, start = (
        buffered(algorithms.get("rolora"), 5, 2, staleness=0.0),
        {"a.A": torch.zeros(1, 1), "a.B": torch.zeros(1, 1)},
    )
    state = algorithm.init(start, {}, Round(0, 9, 0, 5))
    seen = set[str]()
    for index in range(4):
        round = Round(index, 9, 0, 5)
        name = ("a.B", "a.A")[index % 2]
        uploads = [
            Upload(c, {name: state.params[name] + 1.0}, 1.0)
            for c in CLIENTS
            if c.id in algorithm.starting(state, round)
        ]
        before, state = state, algorithm.aggregate(state, uploads, round)
        moved = {n: float(state.params[n] - before.params[n]) for n in start}
        assert sum(moved.values()) == pytest.approx(1.0)
        seen |= {n for n, change in moved.items() if change}
    assert seen == set(start)
