"""Any number of clients in one process over one frozen base."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, ClientFailed, Round, Shared, Upload
from rondo.config.schema import RunConfig
from rondo.data.population import Population
from rondo.engine import scoring, serialization
from rondo.engine.client.cohorts import one_cohort, plan, workers
from rondo.engine.client.memory import activation_bytes, budget, give_back
from rondo.engine.client.trainer import CohortTrainer, learning_rate
from rondo.engine.faults import turnout
from rondo.engine.scoring import spread
from rondo.engine.server.diagnostics import diagnose
from rondo.engine.server.exchange import Attempt, noted
from rondo.engine.server.ledger import Ledger
from rondo.engine.server.sampling import sample
from rondo.engine.transport import Observer, Trained
from rondo.engine.wire import Identity
from rondo.lowrank import LowRank, total
from rondo.models.network import Network
from rondo.models.shortcuts.prefix import Prefix, States
from rondo.params import Params, client_row
from rondo.tasks.task import Task

_NEWCOMER = Client("cold start", 0)
"""The client whose model is scored on the common test set: one that has taken no part."""


_FURTHER_THREAD = 0.75
"""What a cohort's second thread, and each after it, is worth of one that has a cohort of its own: on two threads 0.8 to
0.9 (docs/log.md), and less where more share a product."""


@dataclass
class Simulation:
    """A run in the making. ``initial``: A, B and the head's tensors unless it is frozen."""

    algorithm: Algorithm[Any]
    network: Network
    task: Task
    population: Population
    config: RunConfig
    initial: Params
    state: Any = field(init=False)
    locals: MutableMapping[str, Params] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    prefix: Prefix | None = None
    stop: threading.Event | None = None
    identity: Identity = field(default_factory=lambda: Identity("simulation", ""))
    workers: int = 1
    _activation_bytes: float | None = None
    _applied: tuple[Any, dict[str, tuple[LowRank, ...]]] = (None, {})

    def __post_init__(self) -> None:
        self.workers = workers(self.network)
        self.state = serialization.canonical(self.algorithm.init(self.initial, self.network.weights(), self.round(0)))

    def round(self, index: int) -> Round:
        """Round ``index`` of this run."""
        return Round(index, self.config.rounds, self.config.seed, len(self.population.members))

    def run_round(self, index: int, observer: Observer | None = None) -> dict[str, Any]:
        """One round, and its record. Where fewer than ``min_clients`` uploads count it is skipped: the model stays.

        The outcome is, bit for bit, that of a round for which the clients that came to nothing had not been sampled.
        Who is in a cohort decides how sums are rounded, so where one had lost a client that nobody expected to lose,
        the round is done again without it.
        """
        started, round, needed = time.perf_counter(), self.round(index), self.config.clients.min_clients
        chosen = sample(self.config.clients, self.population.clients, round)
        there = turnout(self.config, chosen, round)
        every = self.config.evaluation.diagnostics_every
        diagnosed = every > 0 and ((index + 1) % every == 0 or index + 1 == round.total)
        failed: dict[str, ClientFailed] = {}
        down = first_contact = 0
        while True:
            if observer is not None:
                observer.round_started(index, len(there.counted))
            attempt = Attempt(self, round, there, observer)
            held: list[Upload] = []
            uploads = noted(attempt, held) if diagnosed else iter(attempt)
            # An algorithm needs at least one upload; whether there were enough shows when all have come.
            first = next(uploads, None)
            new = self.state if first is None else self.algorithm.aggregate(self.state, _chain(first, uploads), round)
            down, first_contact = down + attempt.down, first_contact + attempt.first_contact
            if not attempt.failed:
                break
            failed |= attempt.failed
            again = turnout(self.config, chosen, round, failed.keys())
            if len(again.counted) < needed or self._same(there.counted, attempt.failed.keys(), again.counted):
                break
            there = again
        lost = {**there.lost, **failed, **attempt.refused}
        skipped = None
        if len(attempt.kept) < needed:
            skipped = f"{len(attempt.kept)} uploads, min_clients is {needed}"
        elif not all(t.isfinite().all() for t in serialization.tensors(new) if t.is_floating_point()):
            skipped = "what the uploads were aggregated to is not finite"
        record = {
            "round": index,
            "clients": len(attempt.kept),
            "sampled": len(chosen),
            "failed": [
                {"client": c.id, "reason": lost[c.id].reason, "detail": lost[c.id].detail}
                for c in chosen
                if c.id in lost
            ],
            "rejected": attempt.rejected,
            "skipped": skipped,
            "loss": attempt.loss(),
            "lr": learning_rate(self.config.train, round),
            "bytes_up": attempt.up,
            "bytes_down": down,
            "bytes_first_contact": first_contact,
        }
        before = self.state
        if skipped is None:
            self.state = serialization.canonical(new)
            self.locals.update({c: serialization.canonical(local) for c, local in attempt.kept.items() if local})
        record["train_seconds"] = time.perf_counter() - started
        if skipped is None and diagnosed:
            give_back()  # the threads that trained hold what they freed, and this one works now
            record["diagnostics"] = diagnose(self.algorithm, self.network.sites, before, self.state, held, round)
        return record

    def _same(self, clients: Sequence[Client], failed: Collection[str], others: Sequence[Client]) -> bool:
        """Whether those of ``clients`` that did not fail are ``others``, and were trained as those would be."""
        there, then = self.cohorts(clients), self.cohorts(others)
        left = [cohort for cohort in there if any(c.id not in failed for c in cohort)]
        return left == then and self.at_once(there) == self.at_once(then)

    def cohorts(self, chosen: Sequence[Client]) -> list[tuple[Client, ...]]:
        """The clients of a round, as they train together."""
        if self.network.one_at_a_time is not None:
            return [(c,) for c in chosen]
        tokens = self._tokens_a_client(chosen)
        allowed = budget(self.network, self.config.simulation.memory_mb)
        at_once = self._at_once(tokens)
        bytes_a_cohort = min(allowed.cohort, allowed.total // at_once)
        return plan(
            chosen,
            self.config.simulation.cohort,
            workers=at_once,
            tokens=min(allowed.tokens, int(bytes_a_cohort / self._bytes_a_token())),
            tokens_a_client=tokens,
        )

    def at_once(self, cohorts: Sequence[Sequence[Client]]) -> int:
        """How many of these cohorts train at once."""
        tokens = self._tokens_a_client([c for cohort in cohorts for c in cohort])
        largest = max(map(len, cohorts), default=1)
        return max(1, min(len(cohorts), self._at_once(largest * tokens)))

    def _at_once(self, tokens: int) -> int:
        if self.workers == 1:
            return 1
        total = budget(self.network, self.config.simulation.memory_mb).total
        allowed = max(1, min(self.workers, int(total / (self._bytes_a_token() * tokens))))
        # Each has the same number of threads; what is left over has nothing to do.
        return max(range(allowed, 0, -1), key=lambda n: n * (1 + _FURTHER_THREAD * (self.workers // n - 1)))

    def _tokens_a_client(self, clients: Sequence[Client]) -> int:
        """Tokens of a client's longest possible batch."""
        return self.config.train.batch_size * max((self.population.longest(c.id) for c in clients), default=1)

    def measure(self) -> None:
        """Find out what a training step keeps a token, in bytes, which cohorts are planned by. A run that is resumed
        must do so in its first state, as it did at its start."""
        examples = self.population.sample(2)
        seen, _ = self.newcomer(0)
        with one_cohort(self.network):
            each = activation_bytes(self.network, self.task, _to(seen, self.network.device), examples)
        self._activation_bytes = max(1.0, each)

    def _bytes_a_token(self) -> float:
        if self._activation_bytes is None:
            self.measure()
        assert self._activation_bytes is not None
        return self._activation_bytes

    def train(self, clients: tuple[Client, ...], round: Round, shared: tuple[Shared, ...]) -> list[Trained]:
        """Local training of a cohort, what each client received in ``shared``. A cohort for which memory is not
        enough is halved."""
        try:
            return self._train(clients, round, shared)
        except ClientFailed as failure:
            if len(clients) == 1:
                return [Trained(clients[0], None, {}, None, failure)]
        except (MemoryError, torch.OutOfMemoryError) as error:
            if len(clients) == 1:
                reason = ClientFailed(clients[0].id, "out_of_memory", str(error).split("\n")[0])
                return [Trained(clients[0], None, {}, None, reason)]
        half = len(clients) // 2
        return self.train(clients[:half], round, shared[:half]) + self.train(clients[half:], round, shared[half:])

    def _train(self, clients: tuple[Client, ...], round: Round, shared: tuple[Shared, ...]) -> list[Trained]:
        device, algorithm = self.network.device, self.algorithm
        kept = [self.locals.get(c.id) for c in clients]
        local = [algorithm.local_init(s, c) if k is None else k for k, s, c in zip(kept, shared, clients, strict=True)]
        examples = tuple(tuple(self.population.members[c.id].train) for c in clients)
        states = None
        if self.prefix is not None:
            each = [self.prefix.states(c.id, rows) for c, rows in zip(clients, examples, strict=True)]
            states = reduce(States.__or__, each)
        trainer = CohortTrainer(
            self.network,
            self.task,
            clients,
            examples,
            round,
            self.config.train,
            self.config.clients,
            self._base(shared[0].base),
            self.prefix,
            states,
            self.stop,
        )
        there = replace(shared[0], params=_stacked([s.params for s in shared], device), base=trainer.base)
        uploads, after = algorithm.client_update(there, _stacked(local, device), trainer)
        sent = {u.client.id: u for u in uploads}
        here = torch.device("cpu")
        result = []
        for k, client in enumerate(clients):
            failure = trainer.failed.get(client.id)
            if failure is not None:
                result.append(Trained(client, None, {}, None, failure))
                continue
            upload = sent[client.id]
            upload = replace(upload, params=_to(upload.params, here))
            result.append(Trained(client, upload, _to(client_row(after, k), here), trainer.mean_loss(k), None))
        return result

    def model(self, client: Client, index: int, local: Params | None = None) -> tuple[Params, Any]:
        """What the network sees, and the base's change, for ``client`` before round ``index``; no client axis."""
        shared = self.algorithm.broadcast(self.state, client, self.round(index))
        if local is None and client is not _NEWCOMER:  # by identity: a client may have any id
            local = self.locals.get(client.id)
        if local is None:
            local = self.algorithm.local_init(shared, client)
        return self.algorithm.view(shared, local), shared.base

    def newcomer(self, index: int) -> tuple[Params, Any]:
        """:meth:`model` of a client that has taken no part: the global, or for personal methods cold-start, model."""
        return self.model(_NEWCOMER, index)

    def score_newcomer(self, index: int) -> dict[str, Any]:
        """Scores on the common test set: under "global", or "cold_start" where models are personal."""
        if not self.population.test:
            return {}
        seen, base = self.newcomer(index)
        return {"cold_start" if self.algorithm.personal else "global": self.scores(seen, base, self.population.test)}

    def score_clients(self, index: int) -> dict[str, Any]:
        """Scores of each client's model on its own validation rows, their mean and that of the worst tenth; under
        "personal" where models are, else under "clients" (the global model at each client)."""
        each = {}
        for name, member in self.population.members.items():
            if member.validation:
                seen, base = self.model(member.client, index)
                each[name] = self.scores(seen, base, member.validation)
        if not each:
            return {}
        metric = self.task.primary
        summary = spread(each, metric, higher_is_better=self.task.higher_is_better)
        kind = "personal" if self.algorithm.personal else "clients"
        return {kind: {metric: summary, "per_client": each}}

    def _base(self, base: Mapping[str, tuple[LowRank, ...]]) -> dict[str, tuple[LowRank, ...]]:
        """The base's change on the device, one matrix a module, in the form that is smaller; made once for all clients
        that share it."""
        applied = self._applied
        if applied[0] is not base:
            device = self.network.device
            sums = {p: total(chunks).compact() for p, chunks in base.items() if chunks}
            applied = (base, {p: (LowRank(c.up.to(device), c.down.to(device)),) for p, c in sums.items()})
            self._applied = applied
        return applied[1]

    def scores(self, seen: Params, base: Any, examples: Any) -> dict[str, float | None]:
        device = self.network.device
        return scoring.scores(
            self.network,
            self.task,
            _to(seen, device),
            self._base(base),
            examples,
            batch_size=self.config.evaluation.batch_size,
        )


def _chain(first: Upload, rest: Iterator[Upload]) -> Iterator[Upload]:
    yield first
    yield from rest


def _stacked(each: Sequence[Params], device: torch.device) -> dict[str, Tensor]:
    """The tensors of several clients with a client axis; one that all share is not copied."""
    stacked = {}
    for name, first in each[0].items():
        if all(one[name] is first for one in each[1:]):
            stacked[name] = first.to(device).unsqueeze(0).expand(len(each), *first.shape)
        else:
            stacked[name] = torch.stack([one[name] for one in each]).to(device)
    return stacked


def _to(params: Params, device: torch.device) -> dict[str, Tensor]:
    return {n: t.to(device) for n, t in params.items()}
