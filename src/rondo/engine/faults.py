"""Rehearsed failures: a transport around another one, which loses, delays, damages and doubles its answers, and a
trainer around another one, whose clients fail.

The configuration and the run's seed decide a client's fault in a round before any client trains. A client that never
answers therefore need not train. One that is to fail in its training is asked like any other, and fails there, so the
halving of cohorts and the trainer's own checks are rehearsed too. The other clients' result is that of a round that
did not sample it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import torch
from torch import Tensor

from rondo.algorithm import Client, ClientFailed, Fit, FitOptions, Loss, Round, Trainer, Upload, Uploads
from rondo.config.schema import FaultKind, FaultsConfig, RunConfig, TrainConfig
from rondo.engine.client.trainer import CohortTrainer
from rondo.engine.transport import Answer, Transport, Turnout, Work
from rondo.engine.wire.envelope import Envelope, Identity, encode_upload
from rondo.params import Params, Select

KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
SPOILED: tuple[FaultKind, ...] = ("corrupt_upload", "wrong_round", "late")
"""Faults of an upload that arrives and must not count, in the order in which they arrive."""

_DETAIL = {"crash": "it never answered", "hang": "it never ended"}
REHEARSED = "a fault that was rehearsed"


def are_rehearsed(config: RunConfig) -> bool:
    """Whether a run rehearses failures, or has a deadline to miss."""
    clients = config.clients
    return config.faults != FaultsConfig() or clients.deadline is not None or clients.over_select > 0


@dataclass(frozen=True)
class Rehearsal:
    """``transport`` with the failures that ``config`` asks for."""

    transport: Transport
    config: RunConfig
    identity: Identity
    """The run's identity, for the envelopes of damaged uploads."""

    def expected(self, clients: Sequence[Client], round: Round, failed: Collection[str]) -> Turnout:
        """See :meth:`rondo.engine.transport.Transport.expected`. Clients selected beyond ``per_round`` take the
        places of failed ones."""
        chosen = self.transport.expected(clients, round, failed)
        faults, options = self.config.faults, self.config.clients
        kinds = {c.id: fault_of(faults, c, round) for c in clients}
        paces = {c.id: pace_of(self.config, c, round) for c in clients}
        wanted = options.per_round if options.over_select and options.per_round else len(clients)
        lost = dict(chosen.lost)
        asked: set[str] = set()
        spoiled: dict[FaultKind, list[Client]] = {kind: [] for kind in SPOILED}
        for client in sorted(chosen.asked, key=lambda c: (*paces[c.id], c.id)):
            kind, seconds = kinds[client.id], paces[client.id][0]
            if kind in _DETAIL and not (kind == "hang" and options.deadline is not None):
                lost[client.id] = ClientFailed(client.id, kind, _DETAIL[kind])
            elif options.deadline is not None and seconds > options.deadline:
                took = "it never ended" if math.isinf(seconds) else f"{seconds:g} s"
                lost[client.id] = ClientFailed(client.id, "deadline", f"{took}, waited for {options.deadline:g} s")
            elif kind is not None and kind in spoiled:
                spoiled[kind].append(client)
            elif len(asked) < wanted:
                asked.add(client.id)
            else:
                lost[client.id] = ClientFailed(client.id, "round_closed", f"{wanted} others came first")
        in_order = tuple(client for arrivals in spoiled.values() for client in arrivals)
        to_train = tuple(c for c in chosen.asked if c.id in asked)
        return Turnout(to_train, lost, in_order)

    def exchange(self, round: Round, work: Work) -> Iterator[Answer]:
        """See :meth:`rondo.engine.transport.Transport.exchange`. Damaged, late and doubled uploads come after all
        others, one client at a time, so that the others are made as if they were alone."""
        faults, twice = self.config.faults, []
        for answer in self.transport.exchange(round, replace(work, turnout=replace(work.turnout, spoiled=()))):
            if fault_of(faults, answer.client, round) == "duplicate" and isinstance(answer.upload, Upload):
                twice.append(replace(answer, upload=self._sent("duplicate", answer.upload, round)))
            yield answer
        yield from twice
        for client in work.turnout.spoiled:
            kind = fault_of(faults, client, round)
            assert kind is not None
            for answer in self.transport.exchange(round, replace(work, turnout=Turnout((client,)), measured=False)):
                if isinstance(answer.upload, Upload):
                    answer = replace(answer, upload=self._sent(kind, answer.upload, round), late=kind == "late")
                yield answer

    def must_repeat(self, asked: Sequence[Client], failed: Collection[str]) -> bool:
        """See :meth:`rondo.engine.transport.Transport.must_repeat`."""
        return self.transport.must_repeat(asked, failed)

    def _sent(self, kind: FaultKind, upload: Upload, round: Round) -> bytes:
        """The bytes of ``upload`` that arrive, with the fault ``kind``."""
        client, identity = upload.client, self.identity
        number = round.attempt - 1 if kind == "wrong_round" else round.attempt
        envelope = Envelope(identity.run, number, client.id, identity.model, client.num_examples, upload.weight)
        data = encode_upload(upload, envelope)
        if kind != "corrupt_upload":
            return data
        damaged = bytearray(data)
        generator = round.attempt_generator("corruption", client.id)
        for place in torch.randint(0, 8 * len(data), (16,), generator=generator).tolist():
            damaged[place // 8] ^= 1 << place % 8
        return bytes(damaged)


def in_training(config: FaultsConfig) -> Callable[[CohortTrainer], Trainer]:
    """Puts a trainer around another where ``config`` makes one of its clients fail in training."""

    def around(trainer: CohortTrainer) -> Trainer:
        kinds = tuple(fault_of(config, c, trainer.round) for c in trainer.clients)
        return FailingTrainer(trainer, kinds) if "out_of_memory" in kinds or "nonfinite_loss" in kinds else trainer

    return around


class FailingTrainer(Trainer):
    """``trainer`` with the failures that ``kinds`` names, one per client. See :class:`rondo.algorithm.Trainer`."""

    def __init__(self, trainer: CohortTrainer, kinds: tuple[FaultKind | None, ...]) -> None:
        self.trainer, self.kinds = trainer, kinds
        self.clients, self.round, self.lr = trainer.clients, trainer.round, trainer.lr

    def fit_with(self, params: Params, options: FitOptions) -> Fit:
        """See :meth:`rondo.algorithm.Trainer.fit_with`. The failures begin with the first step's loss."""

        def disturbed(params: Params, loss: Loss) -> Tensor:
            return self._disturbed(options.objective(params, loss))

        return self.trainer.fit_with(params, replace(options, objective=disturbed))

    def solve(self, params: Params, *, train: Select) -> Fit:
        """See :class:`~rondo.algorithms.parts.least_squares.LeastSquares`."""
        fit = self.trainer.solve(params, train=train)
        fit = replace(fit, loss=self._disturbed(fit.loss))
        self.trainer.find_failed(fit.params, fit.loss[None], fit.steps)
        return fit

    def second_moment(self, params: Params, *, of: Select) -> Tensor:
        """See :class:`~rondo.algorithms.parts.least_squares.LeastSquares`."""
        return self.trainer.second_moment(params, of=of)

    def upload(self, params: Params, weight: Tensor | None = None) -> Uploads:
        """See :meth:`rondo.algorithm.Trainer.upload`."""
        return self.trainer.upload(params, weight)

    def _disturbed(self, loss: Tensor) -> Tensor:
        """``loss``, shape (K,), not finite for the clients that are to fail so."""
        if "out_of_memory" in self.kinds:
            raise MemoryError(REHEARSED)
        return loss.masked_fill(torch.tensor([k == "nonfinite_loss" for k in self.kinds], device=loss.device), math.nan)


def fault_of(config: FaultsConfig, client: Client, round: Round) -> FaultKind | None:
    """The fault of ``client`` in ``round``: the first kind that names the client, else one drawn by probability."""
    rates = []
    for kind in KINDS:
        value: float | list[str] = getattr(config, kind)
        if isinstance(value, list):
            if client.id in value:
                return kind
            rates.append(0.0)
        else:
            rates.append(value)
    if not any(rates):
        return None
    draw = float(torch.rand((), generator=round.attempt_generator("faults", client.id), dtype=torch.float64))
    for kind, rate in zip(KINDS, rates, strict=True):
        draw -= rate
        if draw < 0:
            return kind
    return None


def pace_of(config: RunConfig, client: Client, round: Round) -> tuple[float, float]:
    """The simulated seconds that a client's training takes, and a random number that breaks ties between clients that
    take equally long."""
    kind, faults = fault_of(config.faults, client, round), config.faults
    seconds = faults.seconds_per_example * _examples(config.train, client)
    seconds *= math.inf if kind == "hang" else faults.slow_factor if kind == "slow" else 1
    tie = torch.rand((), generator=round.attempt_generator("arrival", client.id), dtype=torch.float64)
    return seconds, float(tie)


def _examples(train: TrainConfig, client: Client) -> int:
    """The number of examples that a client trains on in a round, with repetitions."""
    if train.local_steps is not None:
        return train.local_steps * min(train.batch_size, client.num_examples)
    return (train.local_epochs or 1) * client.num_examples
