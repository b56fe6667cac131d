"""The epsilon that masked sums with noise of the sites spend on a site's rows, by the site's own account.

A vector is written down before it leaves. The site cannot know whether its sum is opened, so each vector counts; the
same vector again counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from rondo.config.schema import RunConfig
from rondo.federation.site.contract import PrivacyTerms
from rondo.federation.site.ledger import SiteLedger
from rondo.privacy.accounts.account import Entry
from rondo.privacy.masking.session import Refused


def steps_of(ledger: SiteLedger, noise: float, client: str, clients: Collection[str]) -> dict[tuple[float, float], int]:
    """The steps on the rows of ``client`` that a vector of ``clients`` is, as the ledger adds them up: those on the
    rows of the clients that share one with it count too.

    ``noise``: the run's.
    """
    steps: dict[tuple[float, float], int] = {}
    for other in ledger.sharing(client, clients):
        kind = (_of_rows(ledger, noise, other, clients), 1.0)  # the server knows who took part
        steps[kind] = steps.get(kind, 0) + 1
    return steps


def _of_rows(ledger: SiteLedger, noise: float, client: str, clients: Collection[str]) -> float:
    """The noise multiplier of a sum for a row of ``client``. ``noise``, z, is for an upload that is there or zero; with
    one row more or less, an upload of norm ``clip`` can turn around, and so moves by twice the clip, and so do those of
    the clients that have the row too."""
    return noise / (2 * len(ledger.sharing(client, clients)))


@dataclass(frozen=True)
class SumAllowance:
    """Writes the vectors of a run down, and refuses those that would exceed the contract.

    ``protection``: the run's.
    """

    ledger: SiteLedger
    allowed: PrivacyTerms
    run: str
    protection: Entry
    told: Callable[[str], None]

    def beyond(self, clients: Collection[str]) -> str | None:
        """The reason why no vector of ``clients`` may leave; None if one may."""
        most = self.allowed.max_epsilon
        if most is None or all(self._after(client, clients) <= most for client in clients):
            return None
        return f"its owner allows epsilon {most:g} over all runs on these rows, and this round would exceed it"

    def spend(self, clients: Collection[str]) -> None:
        """Note a vector of ``clients``, which is on the disk when this returns. Raises :class:`Refused`, and then
        nothing is noted, and OSError."""
        if (reason := self.beyond(clients)) is not None:
            raise Refused("budget", reason)
        limit = "" if self.allowed.max_epsilon is None else f" of {self.allowed.max_epsilon:g}"
        for client in clients:
            noise = _of_rows(self.ledger, self.protection.noise, client, clients)
            self.ledger.spend(client, replace(self.protection, run=self.run, noise=noise))
        for client in clients:
            after = self.ledger.epsilon(client, self.allowed.delta)
            told = f"epsilon {after:.3g}{limit} at delta {self.allowed.delta:g}, over all runs on these rows"
            self.told(f"{client}: {told}")

    def _after(self, client: str, clients: Collection[str]) -> float:
        """Epsilon of the rows of ``client`` after a vector of ``clients``."""
        more = steps_of(self.ledger, self.protection.kind[0], client, clients)
        return self.ledger.epsilon(client, self.allowed.delta, more)


def allowance_of(
    config: RunConfig, ledger: SiteLedger, allowed: PrivacyTerms, run: str, told: Callable[[str], None]
) -> SumAllowance | None:
    """The allowance of a run; None where its sites add no noise to masked uploads."""
    if config.guarantee.noise_from != "sites":
        return None
    return SumAllowance(ledger, allowed, run, Entry.of(config), told)
