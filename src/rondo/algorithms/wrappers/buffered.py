"""Rounds without waiting: the server steps after every few uploads, however old the model that they started from.

Each client trains for as long as it needs, by a simulated clock, and makes room for another one when it is done. An
upload x_k of a client that started from x_s counts by its change x_k - x_s, which becomes ``(1 + t)^-a (x_k - x_s)``
where the server has stepped t times since. The wrapped algorithm aggregates x plus these changes, x being the server's
tensors now. With equal weights and a = 0.5 this is FedBuff.

Source: Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple, TypeAlias, final

import torch

from rondo.algorithm import Client, Round, Upload, Weight
from rondo.algorithms.wrappers.wrapper import InnerState, StateWrapper
from rondo.params import Params
from rondo.traits import Traits

Pace: TypeAlias = Callable[[Client, Round], tuple[float, float]]
"""The simulated seconds of a client's training, and a random number that breaks ties between clients."""


class _Flight(NamedTuple):
    """An upload on its way."""

    arrives: float
    """Simulated seconds since the run's start."""
    tie: float
    client: str
    version: int
    """The server's steps before the client started."""
    weight: float
    change: Params
    """In float64, in which the difference of two float32 tensors is exact unless one is tiny beside the other."""


@dataclass(frozen=True)
class BufferedState(InnerState):
    """The wrapped algorithm's state, and the uploads on their way."""

    clock: float = 0.0
    """Simulated seconds until the last step."""
    staleness: float = 0.0
    """The mean over the last step's uploads of the steps since their clients started."""
    flights: tuple[tuple[Any, ...], ...] = ()


@final
@dataclass(frozen=True)
class Buffered(StateWrapper[BufferedState]):
    """``algorithm`` with a server that steps after every ``buffer`` uploads, while ``at_once`` of ``clients`` train. It
    must qualify by :func:`rondo.algorithms.compatible.refused`.

    The wrapper is neither linear nor exact. A client starts once per step at most.
    """

    clients: tuple[Client, ...]
    at_once: int
    buffer: int
    staleness: float
    """The exponent a."""
    pace: Pace

    @property
    def traits(self) -> Traits:  # type: ignore[override]
        return replace(self.algorithm.traits, exact=False)

    def init(self, params: Params, weights: Mapping[str, Weight], round: Round) -> BufferedState:
        return BufferedState(self.algorithm.init(params, weights, round))

    def starting(self, state: BufferedState, round: Round) -> Collection[str]:
        return self._starts(state, round).keys()

    def aggregate(self, state: BufferedState, uploads: Iterable[Upload], round: Round) -> BufferedState:
        """The next state; the same one where no upload is on its way."""
        starts, now = self._starts(state, round), state.params
        flights = [_Flight(*fields) for fields in state.flights]
        for client, params, weight in ((u.client.id, u.params, u.weight) for u in uploads):
            change = {name: tensor.double() - now[name].double() for name, tensor in params.items()}
            flights.append(_Flight(*starts[client], client, round.index, weight, change))
        flights.sort(key=lambda flight: flight[:3])
        here, later = flights[: self.buffer], flights[self.buffer :]
        if not here:
            return state
        clock = here[-1].arrives
        here.sort(key=lambda flight: (flight.client, flight.version))  # as the engine sorts the uploads of a round
        x = {name: now[name].double() for name in dict.fromkeys(name for flight in here for name in flight.change)}
        ages = [round.index - flight.version for flight in here]
        moved = [
            Upload(
                Client(flight.client, 1),
                {name: t + (1 + age) ** -self.staleness * flight.change.get(name, 0.0) for name, t in x.items()},
                flight.weight,
            )
            for flight, age in zip(here, ages, strict=True)
        ]
        inner = self.algorithm.aggregate(state.inner, moved, round)
        return BufferedState(inner, clock, sum(ages) / len(ages), tuple(map(tuple, later)))

    def measures(self, state: BufferedState) -> Mapping[str, float]:
        """Those of the wrapped algorithm and, after the first step, the clock and the mean age of its uploads."""
        own = {"simulated_seconds": state.clock, "staleness": state.staleness} if state.clock else {}
        return {**self.algorithm.measures(state.inner), **own}

    def _starts(self, state: BufferedState, round: Round) -> dict[str, tuple[float, float]]:
        """The arrival, and what breaks its ties, of the upload of each client that starts before the next step, by
        id."""
        arrivals = [_Flight(*fields)[:3] for fields in state.flights]
        heapify(arrivals)
        busy = {client for _, _, client in arrivals}
        known = {client.id: client for client in self.clients}
        idle = [client for client in self.clients if client.id not in busy]
        starts: dict[str, tuple[float, float]] = {}
        generator = round.attempt_generator("clients")

        def start(now: float) -> None:
            client = idle.pop(int(torch.randint(len(idle), (), generator=generator)))
            seconds, tie = self.pace(client, round)
            starts[client.id] = (now + seconds, tie)
            heappush(arrivals, (now + seconds, tie, client.id))

        for _ in range(min(self.at_once - len(arrivals), len(idle))):
            start(state.clock)
        for _ in range(min(self.buffer - 1, len(arrivals))):
            now, _, done = heappop(arrivals)
            if done not in starts:
                idle.append(known[done])
            if idle:
                start(now)
        return starts
