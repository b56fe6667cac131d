"""The account of the sums that a server has published or opened, and the epsilon of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Releases = dict[int, list[str]]
"""SHA-256 of every sum that was published, by attempt."""
Sampled = dict[int, float]
"""The probability of a client to be in the sums of an attempt; 1 where none is named."""


@dataclass
class Account:
    """The account of a run.

    ``epsilon_of``: epsilon of so many rounds, by the number of sums in each and the probability of a client.
    ``budget``: the largest epsilon; None for no limit.
    ``valid``: whether nobody can know the noise.
    ``probability``: of a client to be in the next sum. It may be another than that of earlier ones: a federation grows.
    """

    epsilon_of: Callable[[Mapping[tuple[int, float], int]], float]
    budget: float | None
    valid: bool
    releases: Releases = field(default_factory=dict)
    sampled: Sampled = field(default_factory=dict)
    probability: float = 1.0
    _known: dict[tuple[tuple[tuple[int, float], int], ...], float] = field(default_factory=dict)

    def spend(self, attempt: int, digest: str) -> bool:
        """Note a sum. Returns whether it is another one than those of the attempt so far: the same sum tells nothing
        more."""
        sums = self.releases.setdefault(attempt, [])
        if digest in sums:
            return False
        before = self.sampled.get(attempt, 1.0) if sums else 0.0
        self.sampled[attempt] = max(before, self.probability)
        sums.append(digest)
        return True

    def epsilon(self, more: int = 0) -> float:
        """Epsilon of everything published so far, and of ``more`` rounds."""
        counts = Counter((len(sums), self.sampled.get(attempt, 1.0)) for attempt, sums in self.releases.items())
        counts[1, self.probability] += more
        known = tuple(sorted(counts.items()))
        if known not in self._known:
            self._known[known] = self.epsilon_of(counts)
        return self._known[known]

    def record(self, attempt: int) -> dict[str, Any]:
        """Keys of a round's record: ``epsilon`` so far, and ``epsilon_valid``, False with a debug seed."""
        return {"epsilon": self.epsilon(), "epsilon_valid": self.valid}

    @property
    def exhausted(self) -> bool:
        """Whether another round would exceed the budget."""
        return self.budget is not None and self.epsilon(1) > self.budget
