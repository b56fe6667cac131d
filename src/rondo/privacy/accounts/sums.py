"""The sums that a server has published or opened, and the epsilon of all of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from rondo.privacy.accounts.account import Account, Entry, told
from rondo.privacy.masking.noise_share import epsilon_of_shares


@dataclass(frozen=True)
class SumAccount:
    """The account of a run, which its loop asks.

    ``now``: the protection of the next sum. Its probability may be another than that of earlier ones: a federation
    grows.
    ``budget``: the largest epsilon; None for no limit.
    """

    account: Account
    now: Entry
    budget: float | None

    def spend(self, attempt: int, digest: str, **facts: Any) -> None:
        """Write a sum down. ``facts``: of its :class:`Entry`."""
        self.account.spend(replace(self.now, attempt=attempt, sum=digest, **facts))

    def epsilon(self, more: int = 0) -> float:
        """Epsilon of everything published so far, and of ``more`` rounds."""
        steps = Counter(self.account.steps.get("", {}))
        steps[self.now.kind] += more
        shares = self.account.shares + (more if self.now.colluding is not None else 0)
        return epsilon_of_shares(steps, shares, self.now.delta)

    @property
    def exhausted(self) -> bool:
        """Whether another round would exceed the budget."""
        return self.budget is not None and self.epsilon(1) > self.budget

    def record(self, attempt: int) -> dict[str, Any]:
        """Keys of a round's record: ``epsilon``, and ``epsilon_valid``, False where some noise was known or none."""
        return {"epsilon": told(self.epsilon()), "epsilon_valid": self.account.noisy and self.now.kind[0] > 0}
