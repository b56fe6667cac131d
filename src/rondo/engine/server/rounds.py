"""The server of a run: its state, and one round after the other through a transport."""

from __future__ import annotations

import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rondo.algorithm import Algorithm, Client, ClientFailed, Round, Weight
from rondo.config.schema import RunConfig
from rondo.engine.server.diagnostics import diagnose
from rondo.engine.server.exchange import Exchange, RoundContext
from rondo.engine.server.ledger import Ledger
from rondo.engine.transport import Observer, Transport
from rondo.engine.wire import serialization
from rondo.engine.wire.envelope import Identity
from rondo.models.kernels.out_of_memory import is_out_of_memory
from rondo.models.networks.adapted_layer import Site
from rondo.params import Params
from rondo.privacy.accounts.account import RowAccount
from rondo.privacy.sums.sum import Sum
from rondo.process import peak_memory


@dataclass
class Server:
    """A run's server."""

    algorithm: Algorithm[Any]
    config: RunConfig
    clients: Sequence[Client]
    transport: Transport
    sum: Sum
    """The draw of the clients of a round, and all that the server learns of their uploads."""
    rows: RowAccount | None
    """The account of private steps; None where no rows are protected."""
    sites: Mapping[str, Site]
    """The adapted layers by module path."""
    identity: Identity
    initial: Params
    """The tensors that clients train, at the run's start."""
    state: Any
    """The algorithm's state, at first from :func:`first_state`."""
    kept: MutableMapping[str, Params] = field(default_factory=dict)
    """Tensors that clients keep between rounds, by client id, where the transport leaves them to the server."""
    ledger: Ledger = field(default_factory=Ledger)
    aggregated: int = 0
    """Number of rounds aggregated so far."""

    def round(self, attempt: int) -> Round:
        index, start = self.aggregated, self.config.adapter.fresh
        return Round(index, self.config.rounds, self.config.seed, len(self.clients), attempt - index, start)

    def run_round(self, attempt: int, observer: Observer | None = None) -> dict[str, Any]:
        """Run one round and return its record. With fewer uploads than ``min_clients`` the attempt is skipped: the
        model stays, and the next attempt is at the same round.

        Failed clients leave no trace: the result is, bit for bit, that of a round that never sampled them. The members
        of a cohort decide how its sums are rounded, so a cohort that lost a client unexpectedly is trained again
        without it.
        """
        started, round = time.perf_counter(), self.round(attempt)
        chosen = self._chosen(round)
        context = RoundContext(
            algorithm=self.algorithm,
            state=self.state,
            round=round,
            config=self.config,
            identity=self.identity,
            ledger=self.ledger,
            rows=self.rows,
            transport=self.transport,
            measured=self._diagnosed(round),
            observer=observer or Observer(),
        )
        gathered = self._gathered(chosen, context)
        before, kept = self.state, gathered.exchange.kept
        new, skipped = self._next_state(gathered, round)
        record = self._record(gathered, chosen, round, skipped)
        if skipped is None:
            self.state = serialization.canonical(new)
            self.aggregated += 1
            self.kept.update({c: serialization.canonical(local) for c, local in kept.items() if local})
            self.ledger.counted |= {c: attempt for c, local in kept.items() if local is None}
        record["aggregated"] = self.aggregated
        record["train_seconds"] = time.perf_counter() - started
        record |= peak_memory()
        if skipped is None and context.measured:
            held = gathered.exchange.held
            record["diagnostics"] = diagnose(self.algorithm, self.sites, before, self.state, held, round, self.initial)
        return record

    def _chosen(self, round: Round) -> Sequence[Client]:
        """The clients that start in ``round``, by the method or, as a rule, by the run's sampling."""
        starting = self.algorithm.starting(self.state, round)
        if starting is None:
            return self.sum.sample(self._able(round), round)
        return sorted((c for c in self.clients if c.id in starting), key=lambda c: c.id)

    def _gathered(self, chosen: Sequence[Client], context: RoundContext) -> _Gathered:
        """Exchange with the ``chosen`` clients, again without the failed ones while these change the others' bits."""
        round = context.round
        turnout = self.transport.expected(chosen, round, ())
        failed: dict[str, ClientFailed] = {}
        down = first_contact = 0
        while True:
            context.observer.round_started(round.attempt, len(turnout.asked))
            exchange = Exchange(context, turnout)
            total, fault = self._added_up(exchange)
            down, first_contact = down + exchange.down, first_contact + exchange.first_contact
            failed |= exchange.failed
            again = self.transport.expected(chosen, round, failed.keys()) if exchange.failed else turnout
            left = tuple(c for c in turnout.asked if c.id not in exchange.failed)
            if not exchange.failed or len(again.asked) < self.sum.least:
                break
            if again.asked == left and not self.transport.must_repeat(turnout.asked, exchange.failed.keys()):
                break
            turnout = again
        return _Gathered(exchange, total, fault, {**turnout.lost, **exchange.refused, **failed}, down, first_contact)

    def _added_up(self, exchange: Exchange) -> tuple[Any, str | None]:
        """The sum of an exchange's uploads, or the error that costs the round. All uploads are asked for in any
        case."""
        setting = exchange.setting
        try:
            with exchange.cost:
                return self.sum.total(self.algorithm, self.state, exchange, setting.round), None
        except self.sum.faults as error:
            if exchange.error is not None or is_out_of_memory(error):
                raise
            fault = f"{type(error).__name__}: {error}".split("\n")[0]
        exchange.drain()
        return None, fault

    def _next_state(self, gathered: _Gathered, round: Round) -> tuple[Any, str | None]:
        """The state after the round, or the reason why it is skipped."""
        count, needed = len(gathered.exchange.kept), self.sum.least
        if count < needed:
            return self.state, f"{count} uploads, min_clients is {needed}"
        new, fault = (self.state, gathered.fault) if gathered.fault else self._opened(gathered.total, round)
        if fault is not None:
            return new, f"the uploads cannot be aggregated: {fault}"
        if not all(t.isfinite().all() for t in serialization.tensors(new) if t.is_floating_point()):
            return new, "what the uploads were aggregated to is not finite"
        return new, None

    def _record(
        self, gathered: _Gathered, chosen: Sequence[Client], round: Round, skipped: str | None
    ) -> dict[str, Any]:
        exchange, lost, hidden = gathered.exchange, gathered.lost, self.config.guarantee.hides_uploads
        failures = [(c.id, lost[c.id]) for c in chosen if c.id in lost]
        return {
            "round": round.attempt,
            "clients": len(exchange.kept),
            "sampled": len(chosen),
            "failed": [{"client": name, "reason": f.reason, "detail": f.detail} for name, f in failures],
            "rejected": exchange.rejected,
            "skipped": skipped,
            "loss": None if hidden else exchange.loss(),
            "lr": self.config.train.rate(round.index, round.total),
            "bytes_up": exchange.up,
            "bytes_down": gathered.down,
            "bytes_first_contact": gathered.first_contact,
            "client_flops": None if hidden else exchange.flops(),
            "server_seconds": exchange.cost.seconds,
            "server_memory_bytes": exchange.cost.peak_bytes,
            **({} if self.rows is None else self.rows.record([c.id for c in chosen])),
        }

    def _opened(self, total: Any, round: Round) -> tuple[Any, str | None]:
        """The state after ``total``, or the error of an algorithm that cannot finish it."""
        try:
            return self.sum.opened(self.algorithm, self.state, total, round), None
        except (ArithmeticError, RuntimeError, ValueError) as error:
            return self.state, f"{type(error).__name__}: {error}".split("\n")[0]

    def exhausted(self, attempt: int) -> bool:
        """Whether ``privacy.budget`` of rows leaves too few clients for attempt ``attempt``."""
        left, needed = self._able(self.round(attempt)), self.config.clients.min_clients
        return len(left) < min(needed, len(self.clients)) or (not left and len(self.clients) > 0)

    def _able(self, round: Round) -> Sequence[Client]:
        return self.clients if self.rows is None else self.rows.able(self.algorithm, self.state, self.clients, round)

    def _diagnosed(self, round: Round) -> bool:
        """A buffered round aggregates uploads of several models, of which these numbers know one."""
        every = self.config.evaluation.diagnostics_every
        if self.config.guarantee.hides_uploads or self.config.clients.mode == "buffered":
            every = 0
        return every > 0 and ((round.attempt + 1) % every == 0 or round.attempt + 1 == round.total)


def first_state(
    algorithm: Algorithm[Any], initial: Params, weights: Mapping[str, Weight], config: RunConfig, clients: int
) -> Any:
    """The server's state before the first round. ``initial`` are the tensors that clients train, and ``clients`` is the
    number of clients."""
    round = Round(0, config.rounds, config.seed, clients, init_lora_weights=config.adapter.fresh)
    return serialization.canonical(algorithm.init(initial, weights, round))


@dataclass(frozen=True)
class _Gathered:
    """The answers of a round's exchanges, and the bytes that they cost."""

    exchange: Exchange
    """The last one, whose uploads count."""
    total: Any
    fault: str | None
    """The error that costs the round."""
    lost: Mapping[str, ClientFailed]
    down: int
    first_contact: int
