"""Epsilon that clients with example-level privacy have spent, from the steps that their answers count, and the clients
whose next local training stays within the budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from rondo.algorithm import Algorithm, Client, FitOptions, Round
from rondo.algorithms.trial import trial_fits
from rondo.config.schema import RunConfig
from rondo.privacy.accounts.accountant import epsilon_of_steps
from rondo.privacy.mechanism.draws import Draws
from rondo.privacy.steps.planned import private_steps

Steps: TypeAlias = Mapping[str, Mapping[float, int]]
"""Private steps by client id and by the probability of a unit to be in one."""

TOLD = 20
"""Most clients of a round whose own epsilon its record tells: each takes a tenth of a second, and several at first."""


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

    def record(self, asked: Collection[str]) -> dict[str, Any]:
        """Keys of a round's record: ``epsilon``, the largest of all clients so far, of those that left too;
        ``client_epsilon``, by id of those ``asked`` in this round, where they are few (:data:`TOLD`);
        ``epsilon_valid``, False with a debug seed. None is no guarantee at all."""
        few = len(asked) <= TOLD
        told = {client: self._epsilon(self.steps.get(client, {})) for client in asked if few}
        others = {client: own for client, own in self.steps.items() if client not in told}
        largest = max(told.values(), default=0.0)
        largest = max([largest, *self._above(largest, others, rising=True).values()])
        own = {"client_epsilon": {client: _told(epsilon) for client, epsilon in told.items()}} if few else {}
        return {"epsilon": _told(largest), **own, "epsilon_valid": self.config.privacy.debug_seed is None}

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
        beyond = self._above(budget, {client.id: self._after(client, more) for client, more in planned})
        return [client for client in clients if client.id not in beyond]

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

    def _above(self, limit: float, accounts: Steps, *, rising: bool = False) -> Mapping[str, float]:
        """Epsilon of the ``accounts`` above ``limit``, by client; with ``rising``, of those above all that were found
        before them, so that the largest is among these.

        Epsilon grows with the probability and with the number of steps, so that of a group is at most epsilon of the
        largest of both. Where this bound is low enough, the next group is twice as large; else the group is halved.
        """
        found: dict[str, float] = {}
        order = [(max(own), sum(own.values()), client) for client, own in accounts.items() if own]
        order.sort(reverse=True)
        at, size = 0, 1
        while at < len(order):
            group = order[at : at + size]
            share, most, client = group[0][0], max(steps for _, steps, _ in group), group[0][2]
            epsilon = self._epsilon(accounts[client] if len(group) == 1 else {share: most}, limit)
            if epsilon <= limit:
                at, size = at + len(group), 2 * len(group)
            elif len(group) > 1:
                size = len(group) // 2
            else:
                found[client] = epsilon
                limit = epsilon if rising else limit
                at += 1
        return found

    def _epsilon(self, steps: Mapping[float, int], enough: float = 0.0) -> float:
        privacy = self.config.privacy
        assert privacy.noise is not None
        assert privacy.delta is not None
        kinds = {(privacy.noise, share): count for share, count in steps.items()}
        return epsilon_of_steps(kinds, privacy.delta, enough)


def _told(value: float) -> float | None:
    return value if math.isfinite(value) else None
