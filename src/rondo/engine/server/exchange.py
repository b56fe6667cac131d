"""One attempt at a round: what the sampled clients send, what is turned away, and who is lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rondo.algorithm import Client, ClientFailed, Round, Shared, Upload
from rondo.config.schema import FaultKind
from rondo.engine.client.cohorts import in_order, in_turn
from rondo.engine.faults import sent
from rondo.engine.server.diagnostics import HELD_BYTES
from rondo.engine.server.gate import Gate
from rondo.engine.transport import Observer, Trained, Turnout
from rondo.engine.wire import Envelope, Rejected
from rondo.params import Params, num_bytes

if TYPE_CHECKING:
    from rondo.engine.simulation import Simulation


class Attempt:
    """The uploads of one attempt at a round, made cohort by cohort as they are asked for, and what is known of them.

    ``failed``: who came to nothing although nobody expected it; ``refused``: whose upload was turned away, as was
    expected; ``rejected``: how many uploads were turned away, by reason.
    """

    def __init__(self, simulation: Simulation, round: Round, there: Turnout, observer: Observer | None) -> None:
        self.simulation, self.round, self.there, self.observer = simulation, round, there, observer
        self.kept: dict[str, Params] = {}
        self.failed: dict[str, ClientFailed] = {}
        self.refused: dict[str, ClientFailed] = {}
        self.rejected: dict[str, int] = {}
        self.up = self.down = self.first_contact = 0
        self._losses: list[tuple[float, float]] = []

    def __iter__(self) -> Iterator[Upload]:
        simulation, counted = self.simulation, self.there.counted
        everyone = (*counted, *self._faulty("corrupt_upload", "wrong_round", "late"))
        config = simulation.config
        limits, weighting = config.admission, config.clients.weighting
        gate = Gate(
            simulation.algorithm, simulation.state, self.round, everyone, limits, simulation.identity, weighting
        )
        cohorts = simulation.cohorts(counted)
        trained = in_order(self._train, (self._prepared(c) for c in cohorts), simulation.at_once(cohorts))
        twice: list[Upload] = []
        for one in in_turn(trained, counted):
            upload = self._admitted(gate, one)
            if self.observer is not None:
                self.observer.client_done(one.client.id, one.loss if upload is not None else None)
            if upload is None:
                continue
            self.up += simulation.ledger.receive(upload)
            self.kept[one.client.id] = one.kept
            if one.loss is not None:
                self._losses.append((one.loss, upload.weight))
            if one.client.id in self.there.faulty:
                twice.append(upload)
            yield upload
        self._rehearse(gate, twice)

    def _admitted(self, gate: Gate, one: Trained) -> Upload | None:
        """The upload, if there is one and it passes."""
        failure = one.failure
        if one.upload is not None:
            try:
                return gate.check(one.upload)
            except Rejected as rejection:
                self._count(rejection)
                failure = ClientFailed(one.client.id, rejection.reason, rejection.detail)
        assert failure is not None
        self.failed[one.client.id] = failure
        return None

    def _rehearse(self, gate: Gate, twice: Sequence[Upload]) -> None:
        """Uploads that must not count, as bytes, through the same gate: they are made after all others, so that these
        are made as if they were alone."""
        for upload in twice:
            self._turned_away(gate, "duplicate", upload)
        for client in self._faulty("corrupt_upload", "wrong_round", "late"):
            kind = self.there.faulty[client.id]
            if kind == "late":
                gate.close()
            (one,) = self._train(self._prepared((client,)))
            if one.upload is None:
                assert one.failure is not None
                self.refused[client.id] = one.failure
            else:
                rejection = self._turned_away(gate, kind, one.upload)
                self.refused[client.id] = ClientFailed(client.id, rejection.reason, rejection.detail)

    def _turned_away(self, gate: Gate, kind: FaultKind, upload: Upload) -> Rejected:
        run, model = self.simulation.identity.run, self.simulation.identity.model
        client = upload.client
        envelope = Envelope(run, self.round.index, client.id, model, client.num_examples, upload.weight)
        try:
            gate.admit(sent(kind, upload, envelope, self.round))
        except Rejected as rejection:
            self._count(rejection)
            return rejection
        raise AssertionError(f"client {client.id}: the upload that {kind} befell was not turned away")

    def _faulty(self, *kinds: FaultKind) -> list[Client]:
        """The clients that these befell, the kinds in this order."""
        faulty, members = self.there.faulty, self.simulation.population.members
        return [members[c].client for kind in kinds for c, befell in faulty.items() if befell == kind]

    def _count(self, rejection: Rejected) -> None:
        self.rejected[rejection.reason] = self.rejected.get(rejection.reason, 0) + 1

    def _prepared(self, clients: tuple[Client, ...]) -> tuple[tuple[Client, ...], tuple[Shared, ...]]:
        """What each client of a cohort receives; it is counted here."""
        simulation = self.simulation
        shared = tuple(simulation.algorithm.broadcast(simulation.state, c, self.round) for c in clients)
        for client, one in zip(clients, shared, strict=True):
            down, first = simulation.ledger.send(client.id, one)
            self.down += down
            self.first_contact += first
        return clients, shared

    def _train(self, work: tuple[tuple[Client, ...], tuple[Shared, ...]]) -> list[Trained]:
        clients, shared = work
        return self.simulation.train(clients, self.round, shared)

    def loss(self) -> float | None:
        """Mean training loss, weighted as the uploads are."""
        mass = sum(w for _, w in self._losses)
        return sum(x * w for x, w in self._losses) / mass if mass else None


def noted(uploads: Iterable[Upload], into: list[Upload]) -> Iterator[Upload]:
    """``uploads``, each also appended to ``into``, which is left empty where they have more than ``HELD_BYTES``."""
    held = 0
    for upload in uploads:
        held += num_bytes(upload.params)
        if held <= HELD_BYTES:
            into.append(upload)
        else:
            into.clear()
        yield upload
