"""The one door between the server and its clients.

The server's half of a round (:mod:`rondo.engine.server`) knows no place. It hands :class:`Work` to a :class:`Transport`
and reads :class:`Answer` objects from it. Everything that a client sends is checked behind the door.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from torch import Tensor

from rondo.algorithm import Client, ClientFailed, Round, Shared, Upload
from rondo.engine.wire.parcel import Parcel


@dataclass(frozen=True)
class Turnout:
    """The clients of a round, by what is expected of them."""

    asked: tuple[Client, ...]
    """Clients that are asked, in the order given."""
    lost: Mapping[str, ClientFailed] = field(default_factory=dict)
    """Clients that are known to be lost without an upload, by id, with the reason."""
    spoiled: tuple[Client, ...] = ()
    """Clients whose upload will be rejected."""


@dataclass(frozen=True)
class Work:
    """A round's work."""

    turnout: Turnout
    shared: Callable[[Client], Shared]
    """Gives a client its broadcast. Called once per client, when its turn comes."""
    parcel: Callable[[Client], Parcel]
    """Gives the part of a client's broadcast that the client lacks, in place of ``shared``."""
    holds: Callable[[Client, Mapping[str, str]], None]
    """Takes the versions that a client says it holds, where ``parcel`` counted on others."""
    counted: Callable[[Client], int | None]
    """The client's last attempt that counted, of a client that keeps its own tensors."""
    largest: Callable[[], int]
    """Gives the bytes of the largest upload that may count, where uploads are bytes."""
    measured: bool = False
    """Whether the server measures the round afterwards, and so needs memory of its own."""


@dataclass(frozen=True)
class Answer:
    """One client's answer: its upload, or the reason why it has none."""

    client: Client
    upload: Upload | bytes | None = None
    """An object, or the bytes of :mod:`rondo.engine.wire.envelope`."""
    kept: Mapping[str, Tensor] | None = field(default_factory=dict)
    """Tensors that the client keeps if the round counts; None where they stay with the client."""
    loss: float | None = None
    """Mean training loss."""
    failure: ClientFailed | None = None
    late: bool = False
    """Whether the answer came after the round was over."""
    work: tuple[tuple[int, int], ...] = ()
    """Numbers of steps and of rows in each local training; empty where the client is remote."""
    summed: int | None = None
    """Bytes of the masked vectors that came for it, where its upload is in the sum of the round, unseen."""
    flops: int | None = None
    """Operations of its training (:mod:`rondo.engine.client.flops`); None where they are not counted."""


class Transport(Protocol):
    """Takes a round's work to clients and brings their answers back."""

    def expected(self, clients: Sequence[Client], round: Round, failed: Collection[str]) -> Turnout:
        """The turnout of the sampled ``clients``. ``failed``: clients that failed in an earlier exchange of this
        round."""

    def exchange(self, round: Round, work: Work) -> Iterator[Answer]:
        """The answers of the clients asked, in their order, then any other answers."""

    def must_repeat(self, asked: Sequence[Client], failed: Collection[str]) -> bool:
        """Whether losing the ``failed`` of ``asked`` changed the others' bits, as it does in a cohort."""


Phase: TypeAlias = Literal[
    "reading", "dealing", "opening", "tokenising", "loading", "trying", "training", "evaluating", "writing"
]


class Observer:
    """Told of a run's progress, in the thread that runs it. A subclass overrides the methods that it needs.

    >>> class Losses(rondo.Observer):
    ...     def round_done(self, record):
    ...         print(f"{record['loss']:.1f}")
    >>> result = rondo.run(digits, run_dir="runs/observed", observer=Losses())
    2.2
    1.9
    """

    def phase(self, name: Phase) -> None:
        """The run's work from now on."""

    def prepared(self, partition: Mapping[str, Any]) -> None:
        """The rows are dealt. ``partition``: the content of ``partition.json``, which is cleared afterwards."""

    def resumed(self, rounds: int, passed_over: Sequence[str]) -> None:
        """The run goes on after ``rounds`` rounds. ``passed_over``: newer checkpoints that cannot be used, with the
        reason."""

    def round_started(self, index: int, clients: int) -> None:
        """Round ``index`` (0-based, skipped rounds included) asks ``clients`` clients. Called again where a round is
        repeated without a failed client."""

    def client_done(self, client: str, loss: float | None) -> None:
        """A client's upload has come and counts. ``loss``: its mean training loss, None where it took no training
        step."""

    def client_failed(self, client: str) -> None:
        """A client has answered without an upload that counts."""

    def round_done(self, record: Mapping[str, Any]) -> None:
        """A round is committed. ``record``: its line of ``metrics.jsonl``."""


class Tee(Observer):
    """Tells several observers everything, in their order."""

    def __init__(self, *observers: Observer) -> None:
        self.observers = observers

    def phase(self, name: Phase) -> None:
        for observer in self.observers:
            observer.phase(name)

    def prepared(self, partition: Mapping[str, Any]) -> None:
        for observer in self.observers:
            observer.prepared(partition)

    def resumed(self, rounds: int, passed_over: Sequence[str]) -> None:
        for observer in self.observers:
            observer.resumed(rounds, passed_over)

    def round_started(self, index: int, clients: int) -> None:
        for observer in self.observers:
            observer.round_started(index, clients)

    def client_done(self, client: str, loss: float | None) -> None:
        for observer in self.observers:
            observer.client_done(client, loss)

    def client_failed(self, client: str) -> None:
        for observer in self.observers:
            observer.client_failed(client)

    def round_done(self, record: Mapping[str, Any]) -> None:
        for observer in self.observers:
            observer.round_done(record)
