"""The account of everything that was published with noise: sums of uploads, and private steps on rows.

It is JSON lines, each on the disk before what it counts is used. An entry has the noise, the probability and the
secrecy that its own sum or step had, so no later configuration makes it cheaper. Noise that is not secret counts as
none. The epsilon of a run is that of all its sums, or the largest of its clients' steps.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from rondo.algorithm import Algorithm, Client, FitOptions, Round
from rondo.algorithms.trial import trial_fits
from rondo.config.schema import RunConfig
from rondo.privacy.accounts.accountant import epsilon_of_steps
from rondo.privacy.masking.integers import epsilon_of_shares
from rondo.privacy.mechanism.clip import START
from rondo.privacy.mechanism.draws import Draws, private_steps

Steps: TypeAlias = Mapping[tuple[float, float], int]
"""How many steps, by noise multiplier and probability of a unit to be in one. A sum is a step of the clients."""

LEAST = 1e-8
"""Smallest probability of an account: no run has more clients, and no client more rows, than a hundred million."""


@dataclass(frozen=True)
class Entry:
    """A line of an account: a sum, or steps of one kind."""

    noise: float
    """The noise multiplier z that was used."""
    clip: float
    delta: float
    secret: bool
    """Whether nobody knows the noise: it is of no debug seed."""
    colluding: int | None = None
    """Sites whose noise does not count in z, where sites add it; None where they do not."""
    sampled: float = 1.0
    """The probability of a unit to be in the sum, or in a step."""
    who: str = ""
    """The client with the rows, or their digest; empty for a sum of clients."""
    run: str = ""
    """The run, in an account over several."""
    attempt: int = 0
    """The attempt of the run; 0 in an account over several."""
    sum: str = ""
    """SHA-256 of a sum and its noise: the same of the same attempt tells nothing more. Empty for steps."""
    count: int = 1
    """Number of steps. Below 0 for steps that were asked for before, and not taken."""
    then: float | None = None
    """The clip of the next attempt, where it is adaptive."""

    @staticmethod
    def of(config: RunConfig) -> Entry:
        """An entry of the protection that ``config`` has, for ``dataclasses.replace``."""
        promise = config.guarantee
        assert promise.noise is not None
        assert promise.delta is not None
        clip = promise.clip if isinstance(promise.clip, float) else START
        colluding = promise.colluding if promise.noise_from == "sites" else None
        return Entry(promise.noise, clip, promise.delta, promise.debug_seed is None, colluding)

    @staticmethod
    def read(line: bytes) -> Entry:
        """Raises ValueError or TypeError for a line that :meth:`line` does not write."""
        entry = Entry(**json.loads(line))
        texts, flags = (entry.who, entry.run, entry.sum), (entry.secret,)
        whole = (entry.attempt, entry.count, 0 if entry.colluding is None else entry.colluding)
        numbers = (entry.noise, entry.clip, entry.delta, entry.sampled, 1.0 if entry.then is None else entry.then)
        for kind, values in ((str, texts), (bool, flags), (int, whole), (float, numbers)):
            if not all(type(value) is kind for value in values):
                raise TypeError(f"something that is not of type {kind.__name__}")
        small, large = sys.float_info.min, sys.float_info.max
        limits = ((0.0, large), (small, large), (small, 1.0), (LEAST, 1.0), (small, large))
        within = [least <= value <= most for value, (least, most) in zip(numbers, limits, strict=True)]
        counts = entry.count == 1 if entry.sum else entry.count != 0
        if not (all(within) and counts and min(entry.attempt, whole[-1]) >= 0):
            raise ValueError("a number out of its range")
        return entry

    def line(self) -> bytes:
        """The entry as JSON, with its line end."""
        content = {key: value for key, value in vars(self).items() if value is not None and value != ""}
        return json.dumps(content).encode() + b"\n"

    @property
    def kind(self) -> tuple[float, float]:
        """The noise multiplier that counts, and the probability."""
        return (self.noise if self.secret else 0.0, self.sampled)


def read(lines: Iterable[bytes]) -> Iterator[Entry]:
    """The entries in the ``lines`` of an account's file. Raises ValueError for a line that it does not write."""
    for number, line in enumerate(lines, 1):
        try:
            yield Entry.read(line)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"line {number} is not as it was written: {error}") from None


@dataclass
class Account:
    """The entries of an account.

    ``write``: appends lines to its file and flushes them to the disk.
    """

    write: Callable[[bytes], None]
    steps: dict[str, Counter[tuple[float, float]]] = field(default_factory=dict)
    """By client with rows, and of all clients under the empty name."""
    noisy: bool = True
    """Whether all that was published had noise that nobody knows."""
    shares: int = 0
    """Number of sums whose noise is of sites."""
    clips: dict[int, float] = field(default_factory=dict)
    """The clip from each attempt on, where it is adaptive."""
    _sums: dict[tuple[str, int], dict[str, Entry]] = field(default_factory=dict)
    """By attempt of a run, and by digest."""

    def spend(self, *entries: Entry) -> None:
        """Write ``entries`` down; they are on the disk when this returns. A sum that is there spends nothing."""
        new = [entry for entry in entries if entry.sum not in self._sums.get((entry.run, entry.attempt), {})]
        if new:
            self.write(b"".join(entry.line() for entry in new))
        for entry in new:
            self.count(entry)

    def count(self, entry: Entry) -> None:
        """Add an entry that is written down. Raises ValueError for one that no account has."""
        own = self.steps.setdefault(entry.who, Counter())
        self.noisy &= entry.kind[0] > 0
        if not entry.sum:
            _add(own, entry.kind, entry.count)
            return
        sums = self._sums.setdefault((entry.run, entry.attempt), {})
        if entry.sum in sums:
            raise ValueError("a sum stands there twice")
        if sums:
            _add(own, _together(sums.values()), -1)
        sums[entry.sum] = entry
        _add(own, _together(sums.values()), 1)
        self.shares += entry.colluding is not None
        if entry.then is not None:
            self.clips[entry.attempt + 1] = entry.then


def _add(steps: Counter[tuple[float, float]], kind: tuple[float, float], count: int) -> None:
    steps[kind] += count
    if steps[kind] < 0:
        raise ValueError("more steps are taken back than were asked for")
    if steps[kind] == 0:
        del steps[kind]


def _together(sums: Iterable[Entry]) -> tuple[float, float]:
    """Sums of one sample, each with noise of its own, as one step: c sums tell as much as one with noise / sqrt(c)."""
    kinds = [entry.kind for entry in sums]
    least, sampled = min(noise for noise, _ in kinds), max(sampled for _, sampled in kinds)
    return (least and least / math.sqrt(sum((least / noise) ** 2 for noise, _ in kinds)), sampled)


def told(epsilon: float) -> float | None:
    """``epsilon`` in a record: None is no guarantee at all."""
    return epsilon if math.isfinite(epsilon) else None


@dataclass(frozen=True)
class SumAccount:
    """The account of a run, which its loop asks.

    ``now``: the protection of the next sum. Its probability may be another than that of earlier ones: a federation
    grows.
    ``budget``: the largest epsilon; None for no limit.
    """

    account: Account
    now: Entry
    budget: float | None

    def spend(self, attempt: int, digest: str, **facts: Any) -> None:
        """Write a sum down. ``facts``: of its :class:`Entry`."""
        self.account.spend(replace(self.now, attempt=attempt, sum=digest, **facts))

    def epsilon(self, more: int = 0) -> float:
        """Epsilon of everything published so far, and of ``more`` rounds."""
        steps = Counter(self.account.steps.get("", {}))
        steps[self.now.kind] += more
        shares = self.account.shares + (more if self.now.colluding is not None else 0)
        return epsilon_of_shares(steps, shares, self.now.delta)

    @property
    def exhausted(self) -> bool:
        """Whether another round would exceed the budget."""
        return self.budget is not None and self.epsilon(1) > self.budget

    def record(self, attempt: int) -> dict[str, Any]:
        """Keys of a round's record: ``epsilon``, and ``epsilon_valid``, False where some noise was known or none."""
        return {"epsilon": told(self.epsilon()), "epsilon_valid": self.account.noisy and self.now.kind[0] > 0}


TOLD = 20
"""Most clients of a round whose own epsilon its record tells: each takes a tenth of a second, and several at first."""


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
    """The counts of the answers since, where they are not what was asked for."""
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

    def planned(self, algorithm: Algorithm[Any], state: Any, client: Client, round: Round) -> int:
        """The steps that the method asks of a client. One that has not been met has no rows yet, and so no steps."""
        return sum(steps for _, steps in self._planned(algorithm, state, [client], round))

    def _planned(
        self, algorithm: Algorithm[Any], state: Any, clients: Sequence[Client], round: Round
    ) -> Iterator[tuple[Client, int]]:
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
