"""The one door between the server and its clients.

The server's half of a round (:mod:`rondo.engine.server`) knows no place. It hands :class:`Work` to a :class:`Transport`
and reads :class:`Answer` objects from it. Everything that a client sends is checked behind the door.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from rondo.algorithm import Client, ClientFailed, Round, Shared, Upload


@dataclass(frozen=True)
class Turnout:
    """Who is asked in a round, in the order given, and who is known to be lost without an upload, with the reason.

    ``spoiled``: clients that answer too, but with something that is certain to be turned away.
    """

    asked: tuple[Client, ...]
    lost: Mapping[str, ClientFailed] = field(default_factory=dict)
    spoiled: tuple[Client, ...] = ()


@dataclass(frozen=True)
class Work:
    """A round's work. ``shared`` gives what a client must know; it is called once per client, when its turn comes."""

    turnout: Turnout
    shared: Callable[[Client], Shared]


@dataclass(frozen=True)
class Answer:
    """One client's answer: its upload (an object, or the bytes of :mod:`rondo.engine.wire`), or the reason why there
    is none. ``kept``: what the client keeps if the round counts; ``loss``: its mean training loss; ``late``: it came
    after the round was over."""

    client: Client
    upload: Upload | bytes | None = None
    kept: Mapping[str, Tensor] = field(default_factory=dict)
    loss: float | None = None
    failure: ClientFailed | None = None
    late: bool = False


class Transport(Protocol):
    """Takes a round's work to clients and brings their answers back."""

    def expected(self, clients: Sequence[Client], round: Round, failed: Collection[str]) -> Turnout:
        """Who of the sampled ``clients`` is asked. ``failed``: clients that failed in an earlier attempt."""

    def exchange(self, round: Round, work: Work) -> Iterator[Answer]:
        """The answers of the clients asked, in their order; after them any others."""

    def must_repeat(self, asked: Sequence[Client], failed: Collection[str]) -> bool:
        """Whether losing the ``failed`` of ``asked`` changed the others' bits, as it does in a cohort."""


class Observer(Protocol):
    """Told of a run's progress. ``resumed``: the number of rounds that a run goes on after, and newer checkpoints that
    cannot be used, with the reason."""

    def resumed(self, rounds: int, passed_over: Sequence[str]) -> None: ...
    def round_started(self, index: int, clients: int) -> None: ...
    def client_done(self, client: str, loss: float | None) -> None: ...
    def round_done(self, record: dict[str, Any]) -> None: ...
