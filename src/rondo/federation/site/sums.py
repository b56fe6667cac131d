"""A site's part in masked sums: its clients' changes leave added up and masked, and the sum of all sites is opened once
per attempt (:mod:`rondo.privacy.masking.session`). Whatever the server writes is checked against what the site knows
itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray
from torch import Tensor

from rondo.algorithm import Shared, Upload
from rondo.config.schema import RunConfig
from rondo.engine.client.party import Party
from rondo.engine.wire import masked
from rondo.engine.wire.envelope import decode_upload
from rondo.engine.wire.letters import Request
from rondo.engine.wire.parcel import sent_digest
from rondo.engine.wire.strict import Rejected, short
from rondo.federation.identity.peers import Voice
from rondo.federation.letter import SUMS
from rondo.federation.site.audit.audit import Audit
from rondo.federation.site.contract.document import Contract, Term
from rondo.federation.site.contract.protection import Allowance
from rondo.federation.site.sum_state import Attempt, Learned, Opened, SumState
from rondo.privacy.masking.integers import FixedPoint, NoiseShare, stream_of
from rondo.privacy.masking.session import Refused, SiteSession, Terms, fewest
from rondo.privacy.sums.masked_sum import changes_of, fixed_point, weighs_by_examples
from rondo.records.durable import Damaged


def of_sum(config: RunConfig, contract: Contract, voice: Voice | None) -> Iterator[Term]:
    """The terms of a plan whose uploads are masked. ``voice``: the site's, None without ``peers.json``."""
    if config.guarantee.masks_uploads:
        known = 0 if voice is None else len(voice.peers)
        least, asked = fewest(known, contract.training.least_sites), config.clients.per_round
        kept = least <= min(known + 1, asked or known + 1)
        allowed = f"sums of {least} sites at least (training.least_sites), with {known} others in peers.json"
        allowed += f", of whom {least - 1} with the server could learn its part" if kept else ""
        ready = "of the sites that are ready" if asked is None else f"of the sites of {asked} clients at most"
        if voice is None:
            command = "rondo federate site peers peers.json"
            allowed = f"none before peers.json is taken in: {command}, then start the client again"
        yield Term("masked sum", ready, allowed, voice is not None and kept)


@dataclass(frozen=True)
class _Answered:
    """An answer: its bytes, and its kind and content in the audit."""

    data: bytes
    kind: str
    content: Mapping[str, Any]


@dataclass
class Sums:
    """The masked sums of a run.

    ``folder``: the run's, on the site's disk.
    ``least``: see :class:`~rondo.privacy.masking.session.SiteSession`.
    ``largest``: most bytes of a letter that leaves.
    ``opened``: what the site has opened, over all runs.
    ``run``, ``plan``, ``model``: the run's name, digest of its plan, and of the base model.
    """

    folder: Path
    voice: Voice
    least: int | None
    largest: float
    run: str
    plan: str
    model: str
    config: RunConfig
    opened: Opened
    audit: Audit
    told: Callable[[str], None]
    allowance: Allowance | None = None
    """Counts vectors with noise of this site; None where it adds none."""
    _attempt: Attempt | None = None
    _loaded: bool = field(default=False)

    def __post_init__(self) -> None:
        self._state = SumState(self.folder, self.voice.name)

    @property
    def fewest(self) -> int:
        """The fewest sites that open a sum."""
        return fewest(len(self.voice.peers), self.least)

    # --- after training -------------------------------------------------------------------------------------------

    def keep(self, party: Party, request: Request, upload: bytes) -> str | None:
        """Keep the change of an upload of this site's own on the disk, until a sum takes it up. Returns the reason why
        it cannot be in one; None if it can. Raises OSError."""
        received = decode_upload(upload, len(upload), len(upload))
        client, algorithm = request.client, party.local.algorithm
        weight = float(len(party.member.train)) if weighs_by_examples(self.config.clients, algorithm) else 1.0
        if received.envelope.weight != weight:
            return "its upload would have a weight that is not its number of examples, nor 1"
        holdings = party.holdings
        shared = Shared(
            {name: holdings.params[name] for name in request.parcel.versions},
            {path: holdings.base[path] for path in request.parcel.base},
        )
        sent = sent_digest(shared, client, request.round)
        changes = changes_of(algorithm, shared, client, request.round)
        change = changes.of(Upload(client, received.tensors(), weight))
        names = tuple(name for name, _ in changes.layout)
        attempt, population = request.round.attempt, request.round.population
        self._state.keep(Learned(client.id, request.round.index, attempt, population, weight, sent, names, change))
        return None

    def beyond(self, client: str) -> str | None:
        """The reason why ``client`` need not train, since no vector with its change may leave; None if one may."""
        return None if self.allowance is None else self.allowance.beyond([client])

    # --- letters --------------------------------------------------------------------------------------------------

    def answer(self, kind: str, letter: bytes) -> bytes:
        """The answer to a letter of a kind of :data:`~rondo.federation.letter.SUMS`. Raises OSError, and then nothing
        must leave."""
        content: dict[str, Any] = {}
        number: int | None = None
        try:
            asked = self._read(kind, letter)
            number, content = asked.attempt, _in_clear(asked)
        except Rejected as rejection:
            content, asked = {"reason": str(rejection)}, None
        self.audit.note("in", f"{kind} asked", letter, content, run=self.run, round=number)
        try:
            if asked is None:
                raise Refused("unreadable", content["reason"])
            answered = self._answered(asked)
            if len(answered.data) > self.largest:
                raise Refused("too_large", f"its answer has more than the {self.largest / 1e6:g} MB of its contract")
        except Refused as refused:
            data = masked.Refusal(refused.reason, refused.detail).encode()
            answered = _Answered(data, "reason", {"reason": refused.reason, "detail": refused.detail})
            self.told(f"masked sum: refused: {refused}")
        self.audit.note("out", answered.kind, answered.data, answered.content, run=self.run, round=number)
        return answered.data

    def _read(self, kind: str, letter: bytes) -> masked.AskReady | masked.AskMasked | masked.AskShares:
        if kind == SUMS[0]:
            return masked.AskReady.decode(letter)
        if kind == SUMS[1]:
            return masked.AskMasked.decode(letter)
        return masked.AskShares.decode(letter, self.voice.name)

    def _answered(self, asked: masked.AskReady | masked.AskMasked | masked.AskShares) -> _Answered:
        if asked.run != self.run:
            raise Refused("wrong_run", f"{short(asked.run)}, this is {self.run}")
        if isinstance(asked, masked.AskReady):
            return self._ready(asked)
        attempt = self._now()
        if attempt is None or attempt.session.terms.attempt != asked.attempt:
            raise Refused("wrong_round", f"{asked.attempt}, this site has no key in it")
        if isinstance(asked, masked.AskMasked):
            _must_be_closed(attempt.session)
            members = [m.site for m in asked.named.members]
            numbers = self._numbers(attempt)
            share = self._share(attempt)
            if self._is_bare:
                self.opened.check(*self._opening(attempt, members))
                self.opened.note_seed()
            if share is not None and attempt.session.sent is None:  # otherwise the same vector leaves again, or none
                attempt.session.check(asked.named)
                numbers = numbers + self._noise(attempt, share, len(numbers))
            session, sent = attempt.session.masked(asked.named, numbers)
            self._save(replace(attempt, session=session))
            self.told(f"round {asked.attempt + 1}: a masked vector of {len(numbers)} numbers, to {len(members)} sites")
            content = {"sites": members, "clients": attempt.clients, "numbers": len(numbers)}
            return _Answered(masked.encode_sent(sent, members), "masked vector", content)
        session, given = attempt.session.unmask(asked.unmask)
        if attempt.session.given is None and self._is_bare:
            self.opened.note(*self._opening(attempt, asked.unmask.members))
        self._save(replace(attempt, session=session))
        for client in attempt.clients:
            self._state.forget(client)
        count = len(asked.unmask.members)
        bare = ": the other of the two knows what this one sent" if count == 2 and not self._adds_noise else ""
        self.told(f"round {asked.attempt + 1}: the sum of {count} sites is opened{bare}")
        sites = asked.unmask.members
        return _Answered(masked.encode_shares(given, sites), "shares", {"sites": sites})

    def _ready(self, asked: masked.AskReady) -> _Answered:
        attempt = self._now()
        before = None if attempt is None else attempt.session
        if before is not None and asked.attempt < before.terms.attempt:
            raise Refused("wrong_round", f"{asked.attempt}, this site is in {before.terms.attempt}")
        if before is not None and asked.attempt == before.terms.attempt:
            _must_be_closed(before)
        terms = self._terms(asked)
        if before is None or before.terms.attempt != asked.attempt:
            before = SiteSession(self.voice.name, terms, self.least, self.voice.peers)
        session, said = before.ready(asked.session, terms, self.voice.sign)
        self._save(Attempt(session, asked.clients))
        return _Answered(masked.encode_ready(said), "key", {"session": said.session, "clients": asked.clients})

    def _terms(self, asked: masked.AskReady) -> Terms:
        """The terms of an attempt, of this site's own knowledge but for the threshold and the scale of weights."""
        all_learned = self._learned(asked.attempt, asked.clients)
        populations, names = {x.population for x in all_learned}, {x.names for x in all_learned}
        sent = {x.sent for x in all_learned}
        if len(populations) != 1 or len(names) != 1 or len(sent) != 1:
            raise Refused("wrong_plan", "the clients of this site were sent different models, or different rounds")
        if any(x.weight > asked.largest for x in all_learned):
            raise Refused("wrong_weight", f"{asked.largest:g} is the largest, and a client here weighs more")
        points = fixed_point(self.config, populations.pop())
        assert points is not None
        facts = (self.run, asked.attempt, self.model, self.plan, sent.pop(), names.pop(), points.ring, points.fraction)
        return Terms(*facts, largest=asked.largest, threshold=asked.threshold)

    def _learned(self, attempt: int, clients: tuple[str, ...]) -> list[Learned]:
        if len(set(clients)) != len(clients):
            raise Refused("wrong_client", "a client is named twice")
        found = []
        for client in clients:
            try:
                learned = self._state.learned(client)
            except Damaged as error:
                raise Refused("damaged", str(error)) from None
            if learned is None or learned.attempt != attempt:
                raise Refused("wrong_client", f"{short(client)} has not trained in this round here")
            found.append(learned)
        return found

    def _numbers(self, attempt: Attempt) -> NDArray[numpy.int64]:
        """The sum of the changes of the clients, as integers."""
        terms = attempt.session.terms
        all_learned = self._learned(terms.attempt, attempt.clients)
        if any((x.sent, x.names) != (terms.sent, terms.tensors) for x in all_learned):
            raise Refused("wrong_plan", "a client has trained other tensors, or another model, since")
        share = self._share(attempt)
        if share is not None:
            try:
                encoded = [share.encode(x.change).numpy() for x in all_learned]
            except ValueError as error:
                raise Refused("unbounded", str(error)) from None
        else:
            points = self._points(attempt)
            encoded = [points.encode(x.change, x.weight / terms.largest).numpy() for x in all_learned]
        total: NDArray[numpy.int64] = numpy.sum(encoded, axis=0)
        return total

    def _opening(self, attempt: Attempt, sites: Sequence[str]) -> tuple[int, list[Tensor], list[str]]:
        """The round, the changes of the clients, and in whose company they are added up."""
        all_learned = self._learned(attempt.session.terms.attempt, attempt.clients)
        clients = [f"{self.voice.name}: {client}" for client in attempt.clients]
        return all_learned[0].index, [x.change for x in all_learned], [*sites, *clients]

    def _noise(self, attempt: Attempt, share: NoiseShare, count: int) -> NDArray[numpy.int64]:
        """This site's noise for one vector, which is spent first. Never the same twice, but for a debug seed."""
        terms = attempt.session.terms
        try:
            share.deviation(terms.threshold)
        except ValueError as error:
            raise Refused("threshold", str(error)) from None
        if self.allowance is not None:
            self.allowance.spend(attempt.clients)
        stream = stream_of(self.config.guarantee.debug_seed, terms.attempt, min(attempt.clients))
        return share.drawn(terms.threshold, count, stream)

    def refused(self) -> str | None:
        """The reason why no sum of the run may be opened: its seed was another's. None if one may."""
        try:
            if self._is_bare:
                self.opened.check_seed()
        except Refused as refused:
            return refused.detail
        return None

    @property
    def _is_bare(self) -> bool:
        """Whether the server could take all noise off a sum."""
        return not (self._adds_noise and self.config.guarantee.draws_noise)

    @property
    def _adds_noise(self) -> bool:
        return self.config.guarantee.noise_from == "sites"

    def _share(self, attempt: Attempt) -> NoiseShare | None:
        """The form of this site's noise; None where sites add none."""
        promise = self.config.guarantee
        if not self._adds_noise:
            return None
        assert promise.noise is not None
        return NoiseShare(self._points(attempt), promise.noise, promise.colluding)

    def _points(self, attempt: Attempt) -> FixedPoint:
        terms = attempt.session.terms
        return FixedPoint(terms.ring, terms.fraction, self.config.guarantee.largest_change)

    def _now(self) -> Attempt | None:
        if not self._loaded:
            try:
                self._attempt = self._state.attempt(self.least, self.voice.peers)
            except Damaged as error:
                message = f"{error}, so it cannot know which sum it has opened; its owner starts another run"
                raise Refused("damaged", message) from None
            self._loaded = True
        return self._attempt

    def _save(self, attempt: Attempt) -> None:
        self._attempt = attempt  # where the disk is full, the same letter leaves later, and no noise is spent again
        self._state.save(attempt)


def _must_be_closed(session: SiteSession) -> None:
    if session.given is not None:
        raise Refused("opened", "a sum of this attempt was opened already")


def _in_clear(asked: masked.AskReady | masked.AskMasked | masked.AskShares) -> dict[str, Any]:
    """A letter as the owner would read it."""
    if isinstance(asked, masked.AskReady):
        return {"session": asked.session, "threshold": asked.threshold, "clients": asked.clients}
    if isinstance(asked, masked.AskMasked):
        return {"session": asked.named.session, "sites": [m.site for m in asked.named.members]}
    return {"session": asked.unmask.session, "sites": asked.unmask.members}
