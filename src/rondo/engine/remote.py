"""Remote clients, over any messenger: a transport to them, and their scores, which they compute themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from rondo.algorithm import Client, ClientFailed, Round
from rondo.config import task_kinds as tasks
from rondo.engine.scoring import Scorer
from rondo.engine.server.rounds import Server
from rondo.engine.transport import Answer, Turnout, Work
from rondo.engine.wire.envelope import Identity
from rondo.engine.wire.letters import LARGEST_HEADER, Reply, Request
from rondo.engine.wire.strict import Rejected


class Messenger(Protocol):
    """Brings bytes to clients and back. It vouches for the sender of every reply."""

    def present(self) -> Mapping[str, int]:
        """Numbers of examples, by id, of the clients that can be reached now."""

    def gather(self, drawn: Collection[str], least: int) -> None:
        """Wait until a round can have ``least`` clients: as many as that can be reached, and of those ``drawn`` too,
        unless these stay away for long."""

    def send(self, client: str, data: bytes, largest: int) -> None:
        """Send a request. A reply of more than ``largest`` bytes may come as an empty one."""

    def replies(self) -> Iterator[tuple[str, bytes]]:
        """Replies as they come, each with its client's id, until every request is answered or given up."""


@dataclass
class RemoteTransport:
    """Remote clients, each training alone. See :class:`rondo.engine.transport.Transport`.

    ``least``: clients without which a round does not begin, since it would be skipped.
    ``enough``: this many uploads end a round, and later ones come too late; None waits for all.
    ``named``: the clients of a round as requests name them; None: as many as are asked.
    """

    messenger: Messenger
    identity: Identity
    least: int
    enough: int | None = None
    named: int | None = None
    _turnout: Turnout = field(default_factory=lambda: Turnout(()))

    def expected(self, clients: Sequence[Client], round: Round, failed: Collection[str]) -> Turnout:
        """Every client that can be reached when the round begins, and has not failed yet."""
        if not failed:
            self.messenger.gather([c.id for c in clients], self.least)
            present = self.messenger.present()
            absent = {c.id: ClientFailed(c.id, "absent", "it is not connected") for c in clients if c.id not in present}
            # A client that came while the round waited has said only now how many examples it has.
            here = (replace(c, num_examples=present[c.id]) for c in clients if c.id in present)
            self._turnout = Turnout(tuple(here), absent)
        return replace(self._turnout, asked=tuple(c for c in self._turnout.asked if c.id not in failed))

    def exchange(self, round: Round, work: Work) -> Iterator[Answer]:
        """Answers in the order of the clients. A client that does not answer has none."""
        asked = {c.id: c for c in work.turnout.asked}
        told: set[str] = set()
        for client in asked.values():
            self._send(client, round, work)
        waiting: dict[str, Answer] = {}
        turn, uploads = iter(asked), 0
        following = next(turn, None)
        for client_id, data in self.messenger.replies():
            if client_id not in asked:
                continue
            answer = self._answer(asked[client_id], data, round, work, again=client_id not in told)
            if answer is None:
                told.add(client_id)
                continue
            waiting.setdefault(client_id, answer)
            uploads += answer.upload is not None
            while following in waiting:
                yield waiting.pop(following)
                following = next(turn, None)
            if self.enough is not None and uploads >= self.enough:
                break
        for client_id in asked:
            if client_id in waiting:
                yield waiting.pop(client_id)

    def must_repeat(self, asked: Sequence[Client], failed: Collection[str]) -> bool:
        """Never: no client shares a call with another."""
        return False

    def _send(self, client: Client, round: Round, work: Work) -> None:
        asked = len(work.turnout.asked) if self.named is None else self.named
        request = Request(self.identity, round, client, work.parcel(client), work.counted(client), asked=asked)
        self.messenger.send(client.id, request.encode(), LARGEST_HEADER + work.largest())

    def _answer(self, client: Client, data: bytes, round: Round, work: Work, *, again: bool) -> Answer | None:
        """The answer in a reply. None for a client that lacks something and is sent it now, which happens once."""
        try:
            reply = Reply.decode(data)
        except Rejected as rejection:
            return Answer(client, failure=ClientFailed(client.id, rejection.reason, rejection.detail))
        if reply.held is not None:
            if not again:
                detail = "it lacks tensors that it was sent in this round"
                return Answer(client, failure=ClientFailed(client.id, "lacking", detail))
            work.holds(client, reply.held)
            self._send(client, round, work)
            return None
        if reply.reason:
            return Answer(client, failure=reply.failure(client.id))
        return Answer(client, reply.upload, kept=None, loss=reply.loss)


@dataclass(frozen=True)
class RemoteScorer(Scorer):
    """A scorer whose clients are at the other end of ``transport``. What they are sent for it is not counted as the
    broadcast of a round, and they do not keep it."""

    server: Server
    transport: RemoteTransport

    def at_clients(self, state: Any, round: Round) -> dict[str, Any]:
        """Clients that cannot be reached, or that fail, have no scores."""
        messenger = self.transport.messenger
        present = messenger.present()
        asked = {c.id: c for c in self.server.clients if c.id in present}
        told: set[str] = set()
        for client in asked.values():
            self._send(client, state, round, len(asked))
        replied: dict[str, Mapping[str, Any]] = {}
        for client_id, data in messenger.replies():
            if client_id not in asked or client_id in replied:
                continue
            try:
                reply = Reply.decode(data)
            except Rejected:
                continue
            if reply.held is not None and client_id not in told:
                told.add(client_id)
                client = asked[client_id]
                self.server.ledger.believe(client_id, reply.held, client.rank)
                self._send(client, state, round, len(asked))
            elif reply.scores and self._are_due(reply.scores):
                replied[client_id] = reply.scores
        return self.summed_up({name: replied[name] for name in asked if name in replied})

    def _send(self, client: Client, state: Any, round: Round, asked: int) -> None:
        ledger = self.server.ledger
        parcel = ledger.parcel(client.id, self.algorithm.broadcast(state, client, round), client.rank)
        counted = ledger.counted_of(client)
        request = Request(self.transport.identity, round, client, parcel, counted, scores=True, asked=asked)
        self.transport.messenger.send(client.id, request.encode(), LARGEST_HEADER)

    def _are_due(self, scores: Mapping[str, Mapping[str, Any]]) -> bool:
        """Whether these are the kinds of scores that a client owes, or those and "validation" where it has test rows of
        its own, each with the task's metrics and no others, which would fill the record. A score better than
        perfect is none: it would choose the best round."""
        known = tasks.metrics_of(self.server.config.task)
        names = self.task.tally().scores().keys() if known else None  # a task of one's own may have none before a row
        return set(self.kinds) <= scores.keys() <= {*self.kinds, "validation"} and all(
            self.task.primary in metrics
            and (len(metrics) <= _MOST_OWN if names is None else metrics.keys() <= names)
            and 0 <= metrics.get("examples", 0) <= _MOST_ROWS
            and all(_possible(metrics.get(name), up) for name, up in known.items())
            for metrics in scores.values()
        )


def _possible(score: float | None, higher_is_better: bool) -> bool:
    """Whether ``score`` can be one of Rondo's metrics, which are 1 at best, or 0 where lower is better."""
    return score is None or (score <= 1 + _ROUNDING if higher_is_better else score >= -_ROUNDING)


_MOST_OWN = 64
"""Most metrics of a task of one's own."""
_ROUNDING = 1e-6
_MOST_ROWS = 2**40
"""More rows than any client has: the number of rows is a score's weight in a mean."""
