"""A site's desk: it answers the letters of a server, by its clients' training, within the contract of its owner. It
knows no network."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from rondo import __version__
from rondo.data.files.tables import Rows
from rondo.engine.client.party import Party
from rondo.engine.wire import masked
from rondo.engine.wire.letters import Reply, Request
from rondo.engine.wire.strict import short
from rondo.errors import StopRequested
from rondo.federation.environment import here
from rondo.federation.identity.peers import Voice
from rondo.federation.letter import SUMS
from rondo.federation.plan import Consent, End, NotAPlan, Plan
from rondo.federation.site.audit import audit
from rondo.federation.site.audit.audit import CONSENTED, Audit, Unwritten
from rondo.federation.site.behind import Behind
from rondo.federation.site.contract import protection, terms
from rondo.federation.site.contract.document import Contract
from rondo.federation.site.disk import PLAN, Disk
from rondo.federation.site.joining import Declined, Joining, Offer, for_the_server
from rondo.federation.site.seat import Seat
from rondo.federation.site.sums import Sums
from rondo.records import durable

_BEAT = 2.0
"""Seconds between the moments at which a refusal leaves that comes after rows were read: its time would tell of
them."""


class Exhausted(Exception):
    """A limit per day is reached: no letter may come or leave any more today (UTC)."""


class Until(threading.Event):
    """A program's ``stop``, and the end of the time that a letter may take."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self._stop, self.end = stop, float("inf")

    def is_set(self) -> bool:
        return self._stop.is_set() or time.monotonic() > self.end


@dataclass
class Desk:
    """The desk of a site.

    ``rows``: the rows of each client, by its id.
    ``folder``: the folder of :class:`Disk` and :class:`Audit`.
    ``contract``: what its owner allows.
    ``asked``: asks the owner about a plan that was not seen before.
    ``told``: called with a line of text per change.
    ``model``, ``tests``, ``voice``: see :class:`Joining`.
    """

    rows: Mapping[str, Rows]
    folder: Path
    device: str
    contract: Contract
    asked: Callable[[Offer], bool]
    told: Callable[[str], None]
    stop: threading.Event
    model: str | None = None
    tests: Mapping[str, Rows] = field(default_factory=dict)
    voice: Voice | None = None
    parties: dict[str, Party] = field(default_factory=dict)
    refusal: str = ""
    """Why no part is taken in the last plan; empty while one is, or before there is a plan that can be read."""
    _plan: str = ""
    """Digest of the plan that ``parties`` were made for."""
    _run: str = ""
    """The name of its run."""
    _disk: Disk | None = None
    _sums: Sums | None = None
    """The masked sums of the run; None where uploads leave as they are."""
    _audit: Audit | None = None

    def __post_init__(self) -> None:
        self.ledger = protection.ledger_of(self.contract, self.folder, self.rows)
        rows, tests = self._allowed(self.rows), self._allowed(self.tests)
        columns, least = self.contract.rows.columns, self.contract.training.least_rows
        behind = Behind(self.folder, self.folder / CONSENTED, rows, tests, columns, least, self.told)
        self.behind = None if self.contract.training.repeats else behind
        self.joining = Joining(
            rows, self.device, self.contract, self.ledger, self.behind, self.model, tests, self.voice
        )
        self._until = Until(self.stop)

    def _allowed(self, of_clients: Mapping[str, Rows]) -> dict[str, Rows]:
        """Rows without the columns that no run may read."""
        allowed = self.contract.columns
        return {
            client: [{c: row[c] for c in row if c in allowed} for row in rows] for client, rows in of_clients.items()
        }

    def answer(self, kind: str | None, letter: bytes) -> bytes:
        """The answer to a letter of a kind of :data:`rondo.federation.letter.KINDS`. Raises
        :class:`~rondo.errors.StopRequested`, :class:`Exhausted`, and OSError where the audit cannot be written."""
        self._within_the_day(len(letter))
        if kind == "plan":
            return self._consent(letter)
        if kind == "round":
            return self._round(letter)
        if kind in SUMS:
            return self._sum(kind, letter)
        if kind == "end":
            self.audit.note("in", "end", letter, {"reason": End.decode(letter).reason}, run=self._run)
        return b""

    def refused(self, kind: str | None, reason: str) -> bytes:
        """The answer to a letter that was not fetched. Raises as :meth:`answer` does."""
        self._within_the_day(0)
        self.told(f"not taken: {reason}")
        self.audit.note("in", "not taken", b"", {"reason": reason}, run=self._run)
        if kind == "plan":
            consent = Consent({}, refused=reason)
            content, data = audit.of_consent(consent), consent.encode()
        elif kind in SUMS:
            content, data = {"reason": reason}, masked.Refusal("too_large", reason).encode()
        else:
            reply = Reply(reason="refused", detail=reason)
            content, data = audit.of_reply(reply), reply.encode()
        self.audit.note("out", "consent" if kind == "plan" else "reason", data, content, run=self._run)
        return data

    @property
    def hides_turnout(self) -> bool:
        """Whether the last plan that it takes part in has a secret turnout."""
        return any(party.local.config.guarantee.secret_turnout for party in self.parties.values())

    @property
    def audit(self) -> Audit:
        """The audit of letters."""
        if self._audit is None:
            self._audit = Audit(self.folder / audit.FILE)
        return self._audit

    def _within_the_day(self, size: int) -> None:
        """Raise :class:`Exhausted` where a letter of ``size`` bytes or its answer is beyond a day's limit."""
        if (reason := self.audit.missing()) is not None:
            raise Exhausted(reason)
        outgoing, incoming = self.contract.outgoing, self.contract.incoming
        for key, used, most in (
            ("outgoing.letters_per_day", self.audit.left() + 1, outgoing.letters_per_day),
            ("outgoing.mb_per_day", self.audit.bytes("out") / 1e6, outgoing.mb_per_day),
            ("incoming.mb_per_day", (self.audit.bytes("in") + size) / 1e6, incoming.mb_per_day),
        ):
            if used > most:
                raise Exhausted(f"{key} = {most:g} of the contract is reached")

    # --- the plan -------------------------------------------------------------------------------------------------

    def _consent(self, letter: bytes) -> bytes:
        run, looked = "", False
        try:
            plan = Plan.decode(letter)
            run = plan.run
            self.audit.note("in", "plan", letter, audit.of_plan(plan, self.audit.plan), run=run)
            if (reason := terms.refusal(self.joining.terms(plan))) is not None:
                raise Declined(reason)
            looked = True
            answer, self.refusal = self._joined(plan), ""
        except (StopRequested, Unwritten):
            raise
        except Exception as error:  # a plan can be anything, and name what no disk takes
            if isinstance(error, NotAPlan):
                self.audit.note("in", "unreadable", letter, {"reason": str(error)})
            self.parties, self._plan, self._sums = {}, "", None
            (self.folder / PLAN).unlink(missing_ok=True)
            version = {"rondo": __version__} if isinstance(error, NotAPlan) else {}  # it may be of another protocol
            answer = Consent({}, refused=for_the_server(error), environment=version)
            reason = "; ".join(line.strip() for line in str(error).splitlines()) or type(error).__name__
            self.refusal = "" if isinstance(error, NotAPlan) else reason
            self.told(f"not taking part: {reason}")
            if looked:
                self.stop.wait(-time.monotonic() % _BEAT)
        data = answer.encode()
        self.audit.note("out", "consent", data, audit.of_consent(answer), run=run)
        return data

    def _joined(self, plan: Plan) -> Consent:
        """Take part. Raises :class:`Declined`, :class:`ConfigError`, and whatever a plan that is none leads to."""
        digest = plan.digest
        if plan.labels is None or digest != self._plan:
            self.told(f"run {plan.run}: a plan has come; reading it")
            if self.behind is not None:
                self.behind.begin()
            offer = self.joining.offer(plan)
            for term in offer.terms:
                if term.own:
                    self.told(f"{term.subject}: {term.own}; {term.allowed}")
            if (reason := terms.refusal(offer.terms)) is not None:
                raise Declined(reason)
            seat = None
            if offer.assembly is not None:
                facts = (self.contract, self.ledger, self.behind, self.audit, self.voice, self.told)
                seat = Seat(plan, offer.assembly, Disk(self.folder, plan.run), *facts)
            sums = None if seat is None else seat.sums()
            self._ask(offer)
            if plan.labels is None:
                return Consent(self.joining.counts(plan), offer.labels, environment=here())
            assert seat is not None
            if self.behind is not None:
                self.behind.keep()
            self.parties = seat.parties(self._until)
            self._disk, self._sums = seat.disk, sums
            self._plan, self._run = digest, plan.run
            durable.write(self.folder / PLAN, plan.encode())
            for line in protection.said(seat.assembly.config):
                self.told(line)
            self.told("ready: " + ", ".join(f"{name} ({count} examples)" for name, count in offer.examples.items()))
        clients = {name: party.member.client.num_examples for name, party in self.parties.items()}
        return Consent(clients, environment=here(), fewest=0 if self._sums is None else self._sums.fewest)

    def _ask(self, offer: Offer) -> None:
        """Ask the owner, unless it has consented to such a plan before. Raises :class:`Declined`."""
        file = self.folder / CONSENTED
        consented = set(file.read_text(encoding="utf-8").split()) if file.is_file() else set()
        if offer.digest not in consented:
            if not self.asked(offer):
                raise Declined("its owner has not consented to this plan")
            durable.write(file, "".join(f"{digest}\n" for digest in sorted(consented | offer.covered)).encode())

    # --- a round --------------------------------------------------------------------------------------------------

    def _round(self, letter: bytes) -> bytes:
        try:
            request = Request.decode(letter)
        except ValueError as error:
            self.audit.note("in", "unreadable", letter, {"reason": str(error)}, run=self._run)
            reply = Reply(reason="refused", detail="this is not a request")
            data = reply.encode()
            self.audit.note("out", "reason", data, audit.of_reply(reply), run=self._run)
            return data
        client, attempt = request.client.id, request.round.attempt
        client = client if client in self.parties else short(client)
        kind = "scores asked" if request.scores else "work"
        self.audit.note("in", kind, letter, audit.of_request(request), run=self._run, client=client, round=attempt)
        began = time.monotonic()
        try:
            reply = self._cut(request, self._reply(request))
        except StopRequested:
            if self.stop.is_set():
                raise
            reply = Reply(reason="refused", detail="it took longer than its owner allows")
        except Exception as error:  # tensors can be anything
            self.told(f"round {attempt + 1}: {type(error).__name__}: {error}")
            why = "its disk is full" if durable.is_full(error) else f"it cannot be answered: {type(error).__name__}"
            reply = Reply(reason="refused", detail=why)
        data, most = reply.encode(), self.contract.outgoing.largest_mb
        if len(data) > most * 1e6:
            reply = Reply(reason="refused", detail=f"its answer is larger than the {most:g} MB that its owner allows")
            data = reply.encode()
        seconds = round(time.monotonic() - began, 3)
        content, kind = audit.of_reply(reply), audit.kind_of(reply)
        self.audit.note("out", kind, data, content, run=self._run, client=client, round=attempt, seconds=seconds)
        if reply.upload:
            loss = "" if reply.loss is None else f", loss {reply.loss:.3f}"
            self.told(f"round {attempt + 1}: {client} trained{loss}, {len(letter)} bytes in, {len(data)} out")
        elif reply == Reply():
            self.told(f"round {attempt + 1}: {client} trained, {len(letter)} bytes in")
        elif reply.reason:
            self.told(f"round {attempt + 1}: {client} has no upload: {reply.reason}: {reply.detail}")
        return data

    def _restore(self) -> None:
        """Take up the last plan, for a program that gets another letter before it or a process of its own for each."""
        if not self.parties and (self.folder / PLAN).is_file():
            self._joined(Plan.decode((self.folder / PLAN).read_bytes()))

    def _sum(self, kind: str, letter: bytes) -> bytes:
        """Answer a letter of a masked sum."""
        reason = "no run of this site masks its uploads"
        try:
            self._restore()
        except (StopRequested, Unwritten):
            raise
        except Exception as error:  # as in a round
            reason = for_the_server(error)
        if self._sums is not None:
            return self._sums.answer(kind, letter)
        self.audit.note("in", f"{kind} asked", letter, {}, run=self._run)
        data = masked.Refusal("wrong_run", reason).encode()
        self.audit.note("out", "reason", data, {"reason": "wrong_run", "detail": reason}, run=self._run)
        return data

    def _reply(self, request: Request) -> Reply:
        self._restore()
        party = self.parties.get(request.client.id)
        if party is None:
            return Reply(reason="refused", detail=f"{short(request.client.id)} is not a client of this site")
        if request.identity.run != self._run:
            return Reply(reason="refused", detail=f"this is run {self._run}, not {request.identity.run}")
        if (reason := self._beyond(request)) is not None:
            return Reply(reason="refused", detail=reason)
        training = self.contract.training
        left = training.minutes_per_run * 60 - self.audit.seconds(self._run)
        self._until.end = time.monotonic() + min(training.minutes_per_round * 60, left)
        try:
            reply = party.reply(request)
        finally:
            self._until.end = float("inf")
        if not request.scores:
            # On the disk before it leaves: what was trained counts once the server says so.
            assert self._disk is not None
            self._disk.save(party)
        if self._sums is not None and reply.upload:  # which stays here: a sum takes it up
            reason = self._sums.keep(party, request, reply.upload)
            return Reply() if reason is None else Reply(reason="refused", detail=reason)
        return reply

    def _beyond(self, request: Request) -> str | None:
        """The reason why a round's work, or scores, are beyond the contract; None if they are not."""
        training, most = self.contract.training, self.contract.outgoing.uploads_per_day
        party, asked = self.parties[request.client.id], request.round
        config = party.local.config
        attempts = range(config.rounds + request.scores)  # scores after the last round are of the one to come
        within = asked.index in attempts and asked.skipped in attempts and asked.attempt in attempts
        if not within or (asked.seed, asked.total) != (config.seed, config.rounds):
            return "this is not a round of this run"
        if (name := terms.misshapen(request.parcel.params, party.local.network)) is not None:
            return f"{short(name)} has not the form of this site's model"
        if request.scores and config.guarantee.noise_from is not None:
            return "scores on rows have no noise, and this run is differentially private"
        if self._sums is not None and request.scores:
            return "its uploads are masked, so no scores of single clients leave"
        if self._sums is not None and (reason := self._sums.beyond(request.client.id)) is not None:
            return reason
        fewest = max(training.least_clients, 0 if self._sums is None else self._sums.fewest)
        if request.asked < fewest and not request.scores:
            return f"{request.asked} clients are asked, and its owner wants {fewest} at least"
        # A training that fails tells something too: tensors can be made so that it fails by a certain row.
        trained = ("upload", "trained", "failure")
        left = self.audit.left("scores") if request.scores else sum(map(self.audit.left, trained))
        if left >= most:
            what = "scores" if request.scores else "uploads"
            return f"{left} {what} have left it today, as many as its owner allows"
        if self.audit.seconds(self._run) >= training.minutes_per_run * 60:
            return f"it has computed {training.minutes_per_run:g} minutes for this run, as many as its owner allows"
        return None

    def _cut(self, request: Request, reply: Reply) -> Reply:
        """``reply`` without what its owner keeps back."""
        outgoing, party = self.contract.outgoing, self.parties.get(request.client.id)
        least, loss, scores = outgoing.least_rows_scored, reply.loss, reply.scores
        if not outgoing.losses or party is None or party.rows(party.member.train) < least:
            loss = None
        if scores and party is not None:
            if not outgoing.scores or party.rows(party.scored) < least:
                scores = {}
            elif party.rows(party.member.validation) < least:  # those beside test rows of its own
                scores = {kind: scores[kind] for kind in scores if kind != "validation"}
        loss = _rounded(loss, outgoing.decimals)
        if scores:
            scores = {k: {n: _rounded(v, outgoing.decimals) for n, v in m.items()} for k, m in scores.items()}
        if reply.reason and reply.reason not in _FOR_THE_SERVER:
            # The words about a training that failed can hold a loss or a row's length: they are the owner's.
            self.told(f"{request.client.id}: {reply.reason}: {reply.detail}")
            return replace(reply, loss=None, detail="its owner sees why")
        return replace(reply, loss=loss, scores=scores)


_FOR_THE_SERVER = ("refused", "wrong_model", "wrong_protocol")
"""Reasons whose words are this program's own."""


def _rounded(number: float | None, decimals: int | None) -> float | None:
    return number if number is None or decimals is None else round(number, decimals)
