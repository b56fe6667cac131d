"""TODO"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rondo.algorithm import Client, ClientFailed, Upload
from rondo.config.schema import FaultKind
from rondo.params import Params


class Observer(Protocol):
    """Told what happens; for progress bars and records. ``resumed``: after how many rounds a run goes on, and which
    newer checkpoints cannot be used, with the reason."""

    def resumed(self, rounds: int, passed_over: Sequence[str]) -> None: ...
    def round_started(self, index: int, clients: int) -> None: ...
    def client_done(self, client: str, loss: float | None) -> None: ...
    def round_done(self, record: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Trained:
    """What became of one client of a cohort: its upload and what it keeps, or why it failed."""

    client: Client
    upload: Upload | None
    kept: Params
    loss: float | None
    failure: ClientFailed | None


@dataclass(frozen=True)
class Turnout:
    """Of the clients of a round: those whose uploads count, in the order given; those who are lost without an upload,
    with the reason; and those who send one that must not count."""

    counted: tuple[Client, ...]
    lost: dict[str, ClientFailed]
    faulty: dict[str, FaultKind]
