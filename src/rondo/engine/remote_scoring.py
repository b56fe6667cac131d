"""Scores of remote clients, which score their models themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rondo.algorithm import Client, Round
from rondo.config import task_kinds as tasks
from rondo.engine.remote import RemoteTransport
from rondo.engine.scoring import Scorer
from rondo.engine.server.rounds import Server
from rondo.engine.wire.letters import LARGEST_HEADER, Reply, Request
from rondo.engine.wire.strict import Rejected


@dataclass(frozen=True)
class RemoteScorer(Scorer):
    """A scorer whose clients are at the other end of ``transport``. What they are sent for it is not counted as the
    broadcast of a round, and they do not keep it."""

    server: Server
    transport: RemoteTransport

    def at_clients(self, state: Any, round: Round) -> dict[str, Any]:
        """As in :meth:`Scorer.at_clients`. Clients that cannot be reached, or that fail, have no scores."""
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
        its own, each with the task's metrics. A score better than
        perfect is none: it would choose the best round."""
        kind = tasks.TABLE.get(self.server.config.task.kind)
        known = {} if kind is None else kind.metrics
        return set(self.kinds) <= scores.keys() <= {*self.kinds, "validation"} and all(
            self.task.primary in metrics
            and 0 <= metrics.get("examples", 0) <= _MOST_ROWS
            and all(_possible(metrics.get(name), up) for name, up in known.items())
            for metrics in scores.values()
        )


def _possible(score: float | None, higher_is_better: bool) -> bool:
    """Whether ``score`` can be one of Rondo's metrics, which are 1 at best, or 0 where lower is better."""
    return score is None or (score <= 1 + _ROUNDING if higher_is_better else score >= -_ROUNDING)


_ROUNDING = 1e-6
_MOST_ROWS = 2**40
"""More rows than any client has: the number of rows is a score's weight in a mean."""
