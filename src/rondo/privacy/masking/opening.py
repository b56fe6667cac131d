"""The server's part in the letters of secure aggregation (:mod:`rondo.privacy.masking.session`), as a value.

The server believes nothing that a sum would show to be wrong: with a false share or vector, the sum is not decodable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy
from numpy.typing import NDArray

from rondo.privacy.masking import masks, shares
from rondo.privacy.masking.session import SESSIONS, Named, Ready, Sent, Shares, Terms, Unmask
from rondo.privacy.masking.shares import threshold_of


class NoSum(Exception):
    """An attempt has no sum, for the reason in the message. Its round is skipped."""


def willing(fewest: Mapping[str, int]) -> set[str]:
    """Those of the sites ``fewest`` whose contracts ask for no more sites than these. ``fewest``: the least number of
    sites that open a sum, by site."""
    left = dict(fewest)
    while (most := max(left.values(), default=0)) > len(left):
        left = {site: asked for site, asked in left.items() if asked < most}
    return set(left)


def enough(fewest: Mapping[str, int]) -> int:
    """The number of sites whose shares open a sum of the sites ``fewest``, which are all willing."""
    return max(threshold_of(len(fewest)), *fewest.values())


def able(fewest: Mapping[str, int], colluding: int) -> set[str]:
    """The willing of the sites ``fewest`` if they can open a sum whose noise is more than that of ``colluding`` sites;
    none otherwise."""
    sites = willing(fewest)
    opens = len(sites) > 1 and enough({site: fewest[site] for site in sites}) > colluding
    return sites if opens else set()


def next_session(session: int) -> int:
    """The number of the session after ``session``. Raises :class:`NoSum` after the last one."""
    if session + 1 >= SESSIONS:
        raise NoSum(f"{SESSIONS} sets lost a site each")
    return session + 1


@dataclass(frozen=True)
class ServerSession:
    """The server's part in one attempt. Letters of another session are dropped.

    ``size``: number of numbers in a vector.
    ``named``: the newest session's set; None while sites become ready.
    ``sent``: the shares that each site of the set has sealed, by the site that can read each.
    ``total``: the sum of the sites' masked vectors.
    """

    terms: Terms
    size: int
    session: int = 0
    ready: Mapping[str, Ready] = field(default_factory=dict)
    named: Named | None = None
    sent: Mapping[str, Mapping[str, bytes]] = field(default_factory=dict)
    total: masks.Masked | None = field(default=None, repr=False)
    shares: Mapping[str, Shares] = field(default_factory=dict)

    def with_ready(self, letter: Ready) -> ServerSession:
        """The state after ``letter``; the first letter of a site counts."""
        if self.named is not None or letter.session != self.session or letter.site in self.ready:
            return self
        if letter.terms != self.terms.digest:
            return self
        return replace(self, ready={**self.ready, letter.site: letter})

    def name_set(self) -> tuple[ServerSession, Named]:
        """The set of the sites that are ready. Raises :class:`NoSum` if they are fewer than the threshold."""
        self._enough(len(self.ready), "are ready")
        named = Named(self.session, tuple(self.ready[site] for site in sorted(self.ready)))
        return replace(self, named=named), named

    def with_sent(self, letter: Sent) -> ServerSession:
        """The state after ``letter``; the first letter of a site of the set counts."""
        if letter.session != self.session or letter.site in self.sent or letter.site not in self._names:
            return self
        others = {n for n in self._names if n != letter.site}
        if len(letter.vector) != self.size or letter.sealed.keys() != others:
            return self
        total = letter.vector if self.total is None else self.total + letter.vector
        return replace(self, sent={**self.sent, letter.site: letter.sealed}, total=total)

    @property
    def complete(self) -> bool:
        """Whether every site of the set has sent its vector."""
        return self.named is not None and self.sent.keys() == set(self._names)

    def again(self) -> ServerSession:
        """The next session, for the sites that have sent a vector in this one, which is void. Raises :class:`NoSum` if
        they are fewer than the threshold, or this was the last session."""
        if self.complete:
            raise ValueError("the set is complete: its sum may be opened")
        self._enough(len(self.sent), "have sent a vector")
        return ServerSession(self.terms, self.size, next_session(self.session))

    def unmask(self) -> dict[str, Unmask]:
        """The letters to the sites of a complete set, by site."""
        if not self.complete:
            raise ValueError("the set is not complete: its seeds stay closed")
        names = self._names
        return {
            site: Unmask(self.session, names, {other: self.sent[other][site] for other in names if other != site})
            for site in names
        }

    def with_shares(self, letter: Shares) -> ServerSession:
        """The state after ``letter``; the first letter of a site of the complete set counts."""
        known = letter.session == self.session and letter.site in self._names and letter.site not in self.shares
        if not known or not self.complete or letter.shares.keys() != set(self._names):
            return self
        return replace(self, shares={**self.shares, letter.site: letter})

    def sum(self) -> NDArray[numpy.int64]:
        """The sum of the set's integers, (size,). Raises :class:`NoSum` with fewer shares than the threshold, or with
        shares that are of no seed."""
        self._enough(len(self.shares), "have opened their shares")
        points = {site: k for k, site in enumerate(self._names, 1)}
        answers = sorted(self.shares)[: self.terms.threshold]
        try:
            seeds = {
                site: shares.join({points[a]: self.shares[a].shares[site] for a in answers}) for site in self._names
            }
        except ValueError as error:
            raise NoSum(str(error)) from None
        assert self.total is not None
        return masks.opened(self.total, seeds.values(), self.terms.ring)

    @property
    def _names(self) -> tuple[str, ...]:
        return () if self.named is None else tuple(m.site for m in self.named.members)

    def _enough(self, count: int, did: str) -> None:
        if count < self.terms.threshold:
            raise NoSum(f"{count} sites {did}, the threshold is {self.terms.threshold}")
