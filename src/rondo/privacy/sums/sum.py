"""The sum of a round's uploads: how a server adds them up, and the sum of a run without protection."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rondo.algorithm import Algorithm, Client, Round, Upload
from rondo.config.schema import ClientsConfig
from rondo.privacy.sums.sampling import sample


class Sum(Protocol):
    """The sum of a round's uploads, and who takes part in it."""

    @property
    def least(self) -> int:
        """Uploads below which a round is skipped."""

    @property
    def faults(self) -> tuple[type[Exception], ...]:
        """Errors of :meth:`total` that cost the round and not the run: uploads that cannot be added up."""

    def sample(self, clients: Sequence[Client], round: Round) -> list[Client]:
        """The clients of a round, sorted by id."""

    def total(self, algorithm: Algorithm[Any], state: Any, uploads: Iterable[Upload], round: Round) -> Any:
        """The sum of what ``uploads`` add. It is not published."""

    def opened(self, algorithm: Algorithm[Any], state: Any, total: Any, round: Round) -> Any:
        """The next state, from the sum as it is published."""


@dataclass(frozen=True)
class SingleUploads:
    """No protection: the algorithm aggregates single uploads by itself. See :class:`Sum`."""

    config: ClientsConfig

    @property
    def least(self) -> int:
        return self.config.min_clients

    @property
    def faults(self) -> tuple[type[Exception], ...]:
        """All errors: finite and well-formed numbers can make a system of equations singular."""
        return (Exception,)

    def sample(self, clients: Sequence[Client], round: Round) -> list[Client]:
        return sample(self.config, clients, round)

    def total(self, algorithm: Algorithm[Any], state: Any, uploads: Iterable[Upload], round: Round) -> Any:
        """The next state; ``state`` without uploads, since an algorithm needs one at least."""
        arriving = iter(uploads)
        first = next(arriving, None)
        if first is None:
            return state
        given = itertools.chain((first,), arriving)
        del first  # it is held by the algorithm alone
        return algorithm.aggregate(state, given, round)

    def opened(self, algorithm: Algorithm[Any], state: Any, total: Any, round: Round) -> Any:
        return total
