"""Epsilon that clients with example-level privacy have spent, from the steps that their answers count, and the clients
whose next local training stays within the budget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rondo.algorithm import Algorithm, Client, FitOptions, Round
from rondo.algorithms.trial import trial_fits
from rondo.config.schema import RunConfig
from rondo.privacy.accounts.account import Account, Entry, Steps, told
from rondo.privacy.accounts.accountant import epsilon_of_steps
from rondo.privacy.mechanism.draws import Draws
from rondo.privacy.steps.planned import private_steps

TOLD = 20
"""Most clients of a round whose own epsilon its record tells: each takes a tenth of a second, and several at first."""


def counted_by_the_server(client: Client, draws: Draws, steps: int) -> None:
    """Counts nothing: the private steps of a simulated client are in its server's :class:`RowAccount`."""


@dataclass
class RowAccount:
    """The private steps of a run.

    A training counts from before it is asked for, so no death of the server forgets it; once its answer is there, it
    counts as that says. One without an answer counts whole: it may have come too late to be read. Rows that a client
    gets later change the probability of later steps alone.
    """

    config: RunConfig
    account: Account
    _asked: dict[str, Entry] = field(default_factory=dict)
    """The trainings that have no answer yet."""
    _other: list[Entry] = field(default_factory=list)
    """What the answers since have counted, where it is not what was asked for."""
    _attempt: int = 0

    def ask(self, algorithm: Algorithm[Any], state: Any, clients: Sequence[Client], round: Round) -> None:
        """Write down what ``clients`` are about to be asked for, as if all were to answer."""
        self._attempt = round.attempt
        planned = self._planned(algorithm, state, clients, round)
        self._asked = {client.id: self._entry(client, more) for client, more in planned if more}
        self.account.spend(*self._asked.values())

    def count(self, client: Client, steps: int) -> None:
        """Count the private steps of an answer. One that did not count has been seen too."""
        asked, taken = self._asked.pop(client.id, None), self._entry(client, steps)
        if asked != taken:
            self._other += [taken] if steps else []
            self._other += [] if asked is None else [replace(asked, count=-asked.count)]

    def settle(self) -> None:
        """Write down what the answers have counted. A training without an answer stays as it was asked for."""
        self.account.spend(*self._other)
        self._other = []

    def record(self, asked: Collection[str]) -> dict[str, Any]:
        """Keys of a round's record: ``epsilon``, the largest of all clients so far, of those that left too;
        ``client_epsilon``, by id of those ``asked`` in this round, where they are few (:data:`TOLD`);
        ``epsilon_valid``, False where some noise was known or none. None is no guarantee at all."""
        few, steps = len(asked) <= TOLD, self.account.steps
        of_asked = {client: self._epsilon(steps.get(client, {})) for client in asked if few}
        others = {client: own for client, own in steps.items() if client not in of_asked}
        largest = max(of_asked.values(), default=0.0)
        largest = max([largest, *self._above(largest, others, rising=True).values()])
        own = {"client_epsilon": {client: told(epsilon) for client, epsilon in of_asked.items()}} if few else {}
        valid = self.account.noisy and self._now.kind[0] > 0
        return {"epsilon": told(largest), **own, "epsilon_valid": valid}

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

    @property
    def _now(self) -> Entry:
        return Entry.of(self.config)

    def _entry(self, client: Client, steps: int) -> Entry:
        """``steps`` steps on the rows of ``client``."""
        share = Draws(self.config.train.batch_size, client.num_examples).probability
        return replace(self._now, who=client.id, attempt=self._attempt, sampled=share, count=steps)

    def _after(self, client: Client, more: int) -> Steps:
        """The steps of ``client`` so far, and ``more``."""
        own = Counter(self.account.steps.get(client.id, {}))
        own[self._entry(client, more).kind] += more
        return +own

    def _above(self, limit: float, accounts: Mapping[str, Steps], *, rising: bool = False) -> Mapping[str, float]:
        """Epsilon of the ``accounts`` above ``limit``, by client; with ``rising``, of those above all that were found
        before them, so that the largest is among these.

        Epsilon grows with the probability, with the number of steps and as the noise falls, so that of a group is at
        most epsilon of the largest of both at the least noise. Where this bound is low enough, the next group is twice
        as large; else the group is halved.
        """
        found: dict[str, float] = {}
        order = [(max(q for _, q in own), sum(own.values()), client) for client, own in accounts.items() if own]
        least = min((noise for own in accounts.values() for noise, _ in own), default=0.0)
        order.sort(reverse=True)
        at, size = 0, 1
        while at < len(order):
            group = order[at : at + size]
            share, most, client = group[0][0], max(steps for _, steps, _ in group), group[0][2]
            epsilon = self._epsilon(accounts[client] if len(group) == 1 else {(least, share): most}, limit)
            if epsilon <= limit:
                at, size = at + len(group), 2 * len(group)
            elif len(group) > 1:
                size = len(group) // 2
            else:
                found[client] = epsilon
                limit = epsilon if rising else limit
                at += 1
        return found

    def _epsilon(self, steps: Steps, enough: float = 0.0) -> float:
        return epsilon_of_steps(steps, self._now.delta, enough)
