"""Rounds whose uploads the server never sees: sites train, send masked vectors, and open their sum together.

Training comes first, so a site that is lost in it costs nothing. Then the letters of
:mod:`rondo.privacy.masking.session` go to the sites whose clients have trained. A set that loses a site is void, and
the others go on with new keys; fewer than the threshold have no sum, and the round is skipped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from rondo.algorithm import Algorithm, Client, ClientFailed, Round, Upload
from rondo.config.schema import RunConfig
from rondo.engine.remote import RemoteTransport
from rondo.engine.transport import Answer, Turnout, Work
from rondo.engine.wire import masked
from rondo.engine.wire.parcel import Parcel, sent_digest, sum_version
from rondo.engine.wire.strict import Rejected
from rondo.federation.letter import SUMS
from rondo.federation.server.saved_sum import Complete, SavedSum
from rondo.federation.server.sites import Sites
from rondo.privacy.masking.changes import Changes
from rondo.privacy.masking.opening import NoSum, ServerSession, able, enough, next_session, willing
from rondo.privacy.masking.session import Terms
from rondo.privacy.sums.masked_sum import (
    MaskedSum,
    Total,
    changes_of,
    check_colluding,
    colluding_of,
    weighs_by_examples,
)


def check_sites(config: RunConfig, sites: int) -> None:
    """Raise :class:`ConfigError` where the masks, or the noise, of so many sites would hide nothing."""
    if sites < 2:
        why = "a sum of one site is its own part, and the roster has one: add another"
        config.guarantee.must_not_mask(why)
    check_colluding(config, sites)


def opening_sites(config: RunConfig) -> Callable[[Mapping[str, int]], Collection[str]] | None:
    """Gives the sites that can open a sum of the run, of least numbers of sites by site; None where none is masked."""
    return partial(able, colluding=colluding_of(config)) if config.guarantee.masks_uploads else None


@dataclass(frozen=True)
class _Vector:
    """The vector of a round. ``sent``, ``sums``: digests of what all clients are sent, and of the base changes in it.
    ``largest``: the weight that counts as one. ``weights``: of each client's upload."""

    changes: Changes
    sent: str
    sums: Mapping[str, str]
    largest: float
    weights: Mapping[str, float]

    @property
    def digest(self) -> str:
        """SHA-256 of names, shapes, what was sent, and the upload that learned nothing."""
        layout = repr(self.changes.layout).encode()
        return hashlib.sha256(layout + self.sent.encode() + self.changes.nothing.numpy().tobytes()).hexdigest()


@dataclass
class MaskedRounds:
    """Remote clients whose uploads stay at their sites, masked: the way to them, and the sum that the sites open. See
    :class:`rondo.engine.transport.Transport` and :class:`rondo.privacy.sums.sum.Sum`.

    ``inner``: brings the round's work to the clients.
    ``sum``: makes the next state of the sum.
    ``told``: called with a line of text per site that is lost.
    """

    inner: RemoteTransport
    sites: Sites
    sum: MaskedSum
    saved: SavedSum
    told: Callable[[str], None]
    _vector: _Vector | None = None
    """The form of the vectors of the round that begins."""
    _complete: Complete | None = None
    """The set of the round whose sum is open."""
    _integers: torch.Tensor | None = None
    """The sum, in int64."""

    @property
    def least(self) -> int:
        return self.sum.least

    @property
    def faults(self) -> tuple[type[Exception], ...]:
        return self.sum.faults

    def sample(self, clients: Sequence[Client], round: Round) -> list[Client]:
        return self.sum.sample(clients, round)

    def total(self, algorithm: Algorithm[Any], state: Any, uploads: Iterable[Upload], round: Round) -> Total:
        """The sum that the sites have opened; nothing where they opened none. ``uploads`` has none."""
        by_examples = weighs_by_examples(self.sum.config, algorithm)
        # As they are now: a client that comes while others train may have more examples than any before.
        weights = {c.id: float(c.num_examples) if by_examples else 1.0 for c in self.sum.clients}
        one = self.sum.clients[0]
        shared = algorithm.broadcast(state, one, round)
        sums = {path: sum_version(change) for path, change in shared.base.items()}
        facts = (changes_of(algorithm, shared, one, round), sent_digest(shared, one, round), sums)
        vector = _Vector(*facts, max(weights.values()), weights)
        self._vector = vector
        for upload in uploads:
            raise AssertionError(f"client {upload.client.id}: an upload that nobody must see")
        complete = self._complete
        if self._integers is None or complete is None:
            return Total(torch.zeros(len(vector.changes.nothing), dtype=torch.int64), [], vector.largest)
        terms, of_uploads = complete.session.terms, list(complete.weights.values())
        return Total(self._integers, of_uploads, terms.largest, terms.threshold, len(complete.clients))

    def opened(self, algorithm: Algorithm[Any], state: Any, total: Total, round: Round) -> Any:
        """See :meth:`rondo.privacy.sums.masked_sum.MaskedSum.opened`."""
        return self.sum.opened(algorithm, state, total, round)

    def expected(self, clients: Sequence[Client], round: Round, failed: Collection[str]) -> Turnout:
        """As without masks; none if sites are away without which those of the round open no sum. Where a sum of this
        round waits to be opened, its clients."""
        complete = self.saved.complete(round.attempt)
        if complete is None:
            turnout = self.inner.expected(clients, round, failed)
            if failed or self.sites.able([c.id for c in turnout.asked]):
                return turnout
            alone = {c.id: ClientFailed(c.id, "absent", "too few sites are connected") for c in turnout.asked}
            return Turnout((), {**turnout.lost, **alone})
        members = {client for of_site in complete.clients.values() for client in of_site}
        absent = {c.id: ClientFailed(c.id, "absent", "it is not in the sum") for c in clients if c.id not in members}
        return Turnout(tuple(c for c in clients if c.id in members and c.id not in failed), absent)

    def exchange(self, round: Round, work: Work) -> Iterator[Answer]:
        """Train, and open the sum. Every answer says whether its upload is in it."""
        assert self._vector is not None
        self._complete, self._integers = None, None
        complete, lost = self.saved.complete(round.attempt), dict[str, ClientFailed]()
        try:
            if complete is not None and complete.of == self._vector.digest:
                for client in work.turnout.asked:
                    work.parcel(client)  # they were sent it before the server died, so it is counted
            else:
                trained = self._trained(round, replace(work, parcel=partial(self._parcel, work)), lost)
                complete = _Sets(self, self._vector, round, trained, lost).complete()
            self._integers = torch.from_numpy(self._sum(complete))
            self._complete = complete
        except NoSum as reason:
            for client in work.turnout.asked:
                lost.setdefault(client.id, ClientFailed(client.id, "no_sum", str(reason)))
        yield from self._answers(work, lost)

    def must_repeat(self, asked: Sequence[Client], failed: Collection[str]) -> bool:
        """Never: integers of one client do not depend on those of another."""
        return False

    def _answers(self, work: Work, lost: Mapping[str, ClientFailed]) -> Iterator[Answer]:
        complete = self._complete
        first = {} if complete is None else {c[0]: complete.up[site] for site, c in complete.clients.items()}
        members = set() if complete is None else {c for of_site in complete.clients.values() for c in of_site}
        for client in work.turnout.asked:
            if client.id in members:
                yield Answer(client, kept=None, summed=first.get(client.id, 0))
            else:
                gone = ClientFailed(client.id, "no_answer", "its site was lost before the sum was opened")
                yield Answer(client, failure=lost.get(client.id, gone))

    def _parcel(self, work: Work, client: Client) -> Parcel:
        """A client's part of the broadcast, with the digests that the base changes of all clients have."""
        assert self._vector is not None
        return replace(work.parcel(client), sums=self._vector.sums)

    def _trained(self, round: Round, work: Work, lost: dict[str, ClientFailed]) -> dict[str, list[str]]:
        """The clients that have trained, by site."""
        trained: dict[str, list[str]] = {}
        for answer in self.inner.exchange(round, work):
            client = answer.client.id
            if answer.failure is not None:
                lost[client] = answer.failure
            elif answer.upload:
                lost[client] = ClientFailed(client, "unmasked", "it sent its upload as it is, which is not looked at")
            else:
                trained.setdefault(self.sites.site_of(client), []).append(client)
        return trained

    def _sum(self, complete: Complete) -> Any:
        """The sum of a complete set, once as many sites as the threshold have opened their shares."""
        session, run = complete.session, self.inner.identity.run
        names = tuple(complete.clients)
        for site, letter in session.unmask().items():
            asked = masked.AskShares(run, session.terms.attempt, letter)
            self.sites.ask(site, SUMS[2], asked.encode(site), masked.LARGEST)
        for site, data in self.sites.replies():
            try:
                session = session.with_shares(masked.decode_shares(data, site, names))
            except Rejected as rejection:
                self.told(f"{site} opens no shares: {rejection}")
            if len(session.shares) >= session.terms.threshold:
                break  # any that many give the same sum
        return session.sum()


@dataclass
class _Sets:
    """The sets of a round's sites, one after the other, until one is complete."""

    transport: MaskedRounds
    vector: _Vector
    round: Round
    trained: Mapping[str, Sequence[str]]
    lost: dict[str, ClientFailed]
    up: dict[str, int] = field(default_factory=dict)

    def complete(self) -> Complete:
        """The first complete set, which is on the disk then. Raises :class:`NoSum`."""
        transport = self.transport
        number, threshold = transport.saved.sessions(self.round.attempt)
        here = dict(self.trained)
        while True:
            here = self._willing(here)
            self._enough(here)
            threshold = max(threshold, enough(transport.sites.fewest(here)))
            noise = transport.sum.noise
            if noise is not None and threshold <= noise.colluding:
                raise NoSum(f"{threshold} sites open a sum, and if {noise.colluding} collude, nobody's noise is left")
            number = next_session(number)
            transport.saved.begin(self.round.attempt, number, threshold)
            session = self._masked(
                ServerSession(self._terms(threshold), len(self.vector.changes.nothing), number), here
            )
            if session.complete:
                clients = {site: tuple(here[site]) for site in sorted(session.sent)}
                weights = {c: self.vector.weights[c] for of_site in clients.values() for c in of_site}
                complete = Complete(self.vector.digest, session, clients, weights, self.up)
                transport.saved.keep(complete)
                return complete
            session.again()
            here = {site: here[site] for site in sorted(session.sent)}

    def _terms(self, threshold: int) -> Terms:
        transport, changes = self.transport, self.vector.changes
        identity, points = transport.inner.identity, transport.sum.points
        names = tuple(name for name, _ in changes.layout)
        facts = (identity.run, self.round.attempt, identity.model, transport.sites.plan_digest, self.vector.sent, names)
        return Terms(*facts, points.ring, points.fraction, self.vector.largest, threshold)

    def _masked(self, session: ServerSession, here: Mapping[str, Sequence[str]]) -> ServerSession:
        """The session after the letters ``ready`` and ``masked``."""
        sites, terms = self.transport.sites, session.terms
        where = (terms.run, terms.attempt, session.session, terms.threshold, terms.largest)
        for site, clients in sorted(here.items()):
            sites.ask(site, SUMS[0], masked.AskReady(*where, tuple(clients)).encode(), masked.LARGEST)
        for site, data in sites.replies():
            try:
                letter = masked.decode_ready(data, site)
                if letter.terms != terms.digest:
                    raise Rejected("wrong_plan", "it has another plan, or was sent another model")
                session = session.with_ready(letter)
            except Rejected as rejection:
                self._gone(site, rejection)
        session, named = session.name_set()
        self._enough({site: here[site] for site in session.ready})
        names, ring = [m.site for m in named.members], terms.ring
        asked = masked.AskMasked(terms.run, terms.attempt, named).encode()
        for site in names:
            sites.ask(site, SUMS[1], asked, masked.largest_sent(session.size, ring))
        for site, data in sites.replies():
            try:
                session = session.with_sent(masked.decode_sent(data, site, names, session.size, ring))
                self.up[site] = self.up.get(site, 0) + session.size * ring // 8
            except Rejected as rejection:
                self._gone(site, rejection)
        return session

    def _enough(self, here: Mapping[str, Sequence[str]]) -> None:
        """Raise :class:`NoSum` if the sites ``here`` are one, or have fewer clients than a round must have."""
        if len(here) < 2:
            raise NoSum(f"{len(here)} sites are left, and a sum of one hides nothing")
        count, least = sum(map(len, here.values())), max(1, self.transport.sum.least)
        if count < least:
            raise NoSum(f"{count} clients are left, min_clients is {least}")

    def _willing(self, here: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
        """The sites ``here`` whose contracts ask for no more sites than these."""
        fewest = self.transport.sites.fewest(here)
        left = willing(fewest)
        for site in here.keys() - left:
            self._gone(site, Rejected("few_sites", f"{len(left)} are left, its contract asks for {fewest[site]}"))
        return {site: here[site] for site in here if site in left}

    def _gone(self, site: str, rejection: Rejected) -> None:
        self.transport.told(f"{site} is in no sum of round {self.round.attempt + 1}: {rejection}")
        for client in self.trained[site]:
            self.lost[client] = ClientFailed(client, rejection.reason, rejection.detail)
