"""Epsilon that clients with example-level privacy have spent, from the steps that their answers count, and the clients
whose next local training stays within the budget."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rondo.algorithm import Algorithm, Client, FitOptions, Round
from rondo.config.schema import RunConfig
from rondo.engine.expected_upload import private_steps, trial_fits
from rondo.privacy.accountant import epsilon_of_steps
from rondo.privacy.draws import Draws

Steps: TypeAlias = Mapping[str, Mapping[float, int]]
"""Private steps by client id and by the probability of a unit to be in one."""


@dataclass
class RowAccount:
    """The private steps of a run.

    A training counts from before it is asked for, so no death of the server forgets it; once its answer is there, it
    counts as that says. One without an answer counts whole: it may have come too late to be read. Rows that a client
    gets later change the probability of later steps alone.

    ``keep``: writes the steps down.
    """

    config: RunConfig
    steps: dict[str, Mapping[float, int]] = field(default_factory=dict)
    keep: Callable[[Steps], None] = lambda steps: None
    _asked: dict[str, Mapping[float, int]] = field(default_factory=dict)
    """The steps of clients that have not answered yet, as if they had."""

    def ask(self, algorithm: Algorithm[Any], state: Any, clients: Sequence[Client], round: Round) -> None:
        """Write down what ``clients`` are about to be asked for, as if all were to answer."""
        planned = self._planned(algorithm, state, clients, round)
        self._asked = {client.id: self._after(client, more) for client, more in planned if more}
        self.keep({**self.steps, **self._asked})

    def count(self, client: Client, steps: int) -> None:
        """Count the private steps of an answer. One that did not count has been seen too."""
        self._asked.pop(client.id, None)
        self.steps[client.id] = self._after(client, steps)

    def settle(self) -> None:
        """Write down what the answers have counted, and the trainings without one."""
        self.steps |= self._asked
        self._asked = {}
        self.keep(self.steps)

    def record(self, clients: Iterable[Client], asked: Collection[str]) -> dict[str, Any]:
        """Keys of a round's record: ``epsilon``, the largest of all clients so far, of those that left too;
        ``client_epsilon``, by id of those ``asked`` in this round; ``epsilon_valid``, False with a debug seed. None is
        no guarantee at all."""
        spent = {client.id: self._epsilon(self.steps.get(client.id, {})) for client in clients}
        left = [self._epsilon(steps) for client, steps in self.steps.items() if client not in spent]
        return {
            "epsilon": _told(max([*spent.values(), *left], default=0.0)),
            "client_epsilon": {c: _told(value) for c, value in spent.items() if c in asked},
            "epsilon_valid": self.config.privacy.debug_seed is None,
        }

    def able(self, algorithm: Algorithm[Any], state: Any, clients: Sequence[Client], round: Round) -> Sequence[Client]:
        """The clients whose local training in ``round`` keeps their epsilon within ``privacy.budget``: all where there
        is none.

        The steps of a training are those that the method asks for, found by running it with a trainer that does not
        train.
        """
        budget = self.config.privacy.budget
        if budget is None:
            return clients
        planned = self._planned(algorithm, state, clients, round)
        return [client for client, more in planned if self._epsilon(self._after(client, more)) <= budget]

    def _planned(
        self, algorithm: Algorithm[Any], state: Any, clients: Sequence[Client], round: Round
    ) -> Iterable[tuple[Client, int]]:
        """The steps that the method asks of each client. One that has not been met has no rows yet, and so no steps."""
        fits: Sequence[FitOptions] = ()
        if clients:
            fits = trial_fits(algorithm, algorithm.broadcast(state, clients[0], round), clients[0], round)
        for client in clients:
            yield client, private_steps(fits, self.config.train, client.num_examples) if client.num_examples else 0

    def _after(self, client: Client, more: int) -> Mapping[float, int]:
        """The steps of ``client`` so far, and ``more``."""
        own = self.steps.get(client.id, {})
        if not more:
            return own
        share = Draws(self.config.train.batch_size, client.num_examples).probability
        return {**own, share: own.get(share, 0) + more}

    def _epsilon(self, steps: Mapping[float, int]) -> float:
        privacy = self.config.privacy
        assert privacy.noise is not None
        assert privacy.delta is not None
        return _epsilon(privacy.noise, tuple(sorted(steps.items())), privacy.delta)


@functools.lru_cache(maxsize=4096)
def _epsilon(noise: float, steps: tuple[tuple[float, int], ...], delta: float) -> float:
    """Clients of equal size have equal steps, and later rounds ask again for those of clients that were away."""
    return epsilon_of_steps({(noise, share): count for share, count in steps}, delta)


def _told(value: float) -> float | None:
    return value if math.isfinite(value) else None
