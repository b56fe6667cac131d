"""The start of a run: the broadcast of its first state, which a client makes itself.

Neither rows nor training have touched the first state. A client has the base model, and the run's configuration with
its seed, so it computes the tensors by the code that the server runs. The server sends their versions
(docs/dev/adr/0023-the-start-is-a-seed.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rondo.algorithm import Algorithm, Client, Round, Shared
from rondo.engine.wire.versions import held_versions, sum_version


def start_of(algorithm: Algorithm[Any], first: Any, rank: int | None, round: Round) -> Shared:
    """The start of every client of ``rank``. ``first``: the server's state before ``round``, the run's first."""
    return algorithm.broadcast(first, Client("", 0, rank), round)


@dataclass(frozen=True)
class StartVersions:
    """The versions of a start, by which the server knows it once the tensors are gone."""

    held: Mapping[str, str] = field(default_factory=dict)
    """As :func:`~rondo.engine.wire.versions.held_versions`."""
    sums: Mapping[str, str] = field(default_factory=dict)
    """The digest of every base change, by module path."""

    @staticmethod
    def by_rank(
        algorithm: Algorithm[Any], first: Any, ranks: Iterable[int | None], round: Round
    ) -> dict[int | None, StartVersions]:
        """The versions of :func:`start_of` for each of ``ranks``."""
        starts = {rank: start_of(algorithm, first, rank, round) for rank in dict.fromkeys(ranks)}
        return {
            rank: StartVersions(
                held_versions(start.params, start.base),
                {path: sum_version(change) for path, change in start.base.items()},
            )
            for rank, start in starts.items()
        }
