"""The three letters of secure aggregation, and a site's part in them, as a value that its owner writes down.

After training, a site says that it is *ready*, with a fresh key. The server names the set of ready sites, and each site
sends its *masked* vector and its sealed shares of the own mask's seed. Once every site of the set has sent one, the
sites *unmask* the sum. A set that is not complete is void: its seeds are never opened, and the others go on with new
keys in another set. No method changes its object. The state that comes with a letter must be on the disk before the
letter is sent: a site that forgets the set that it opened could open another.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace

import numpy
from numpy.typing import NDArray

from rondo.privacy.masking import masks, shares
from rondo.privacy.masking.integers import Ring
from rondo.privacy.masking.masks import KEY
from rondo.privacy.masking.shares import threshold_of

SESSIONS = 4
"""Most sessions of an attempt: the first, and three after a site was lost."""

Draw = Callable[[int], bytes]
"""Gives so many bytes that nobody can tell beforehand."""
Verify = Callable[[bytes, bytes], bool]
"""Tells whether a site has signed: ``verify(signature, text)``."""


def fewest(peers: int, least: int | None) -> int:
    """The fewest sites that open a sum with a site that knows ``peers`` others: ``least``. None: two thirds of them
    all, and three where there are three. The server chooses the set, so all sites of a small one could work with it."""
    return max(2, min(3, peers + 1), threshold_of(peers + 1)) if least is None else max(2, least)


class Refused(Exception):
    """A site does not answer a letter.

    ``reason``: a short code.
    ``detail``: the circumstances, in words.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Terms:
    """Facts on which all sites of an attempt must agree.

    ``plan``, ``model``: digests.
    ``sent``: digest of what the round sent each site (:func:`rondo.engine.wire.parcel.sent_digest`). Were it another
    for one site, the others' changes could be known beforehand, and the sum would be that site's.
    ``tensors``: names of the tensors in the vector, in its order.
    ``fraction``: bits after the point in its numbers.
    ``largest``: the weight that counts as one. Were it another for one site, that site would stand out in the sum.
    ``threshold``: at least that of each earlier set of the attempt.
    """

    run: str
    attempt: int
    model: str
    plan: str
    sent: str
    tensors: tuple[str, ...]
    ring: Ring
    fraction: int
    largest: float
    threshold: int

    @property
    def digest(self) -> bytes:
        """SHA-256 of all of it."""
        return masks.digest("rondo terms 1", *(getattr(self, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Ready:
    """From a site: it has trained. ``signature`` is over :meth:`text` by the site's own key."""

    site: str
    session: int
    terms: bytes
    key: bytes
    signature: bytes = b""

    def text(self) -> bytes:
        """The bytes that are signed."""
        return masks.digest("rondo ready 1", self.site, self.session, self.terms.hex(), self.key.hex())


@dataclass(frozen=True)
class Named:
    """To a site: the set of a session, all of whose sites shall send masked vectors."""

    session: int
    members: tuple[Ready, ...]


@dataclass(frozen=True)
class Sent:
    """From a site: its masked vector, and the sealed shares of its own mask's seed, by the site that can read each."""

    site: str
    session: int
    vector: masks.Masked
    sealed: Mapping[str, bytes]


@dataclass(frozen=True)
class Unmask:
    """To a site: every site of the set has sent its vector. ``sealed``: the shares that the others sealed for it."""

    session: int
    members: tuple[str, ...]
    sealed: Mapping[str, bytes]


@dataclass(frozen=True)
class Shares:
    """From a site: its shares of the seeds of all sites in the set, itself included."""

    site: str
    session: int
    shares: Mapping[str, bytes]


@dataclass(frozen=True)
class SiteSession:
    """A site's part in one attempt.

    The server chooses the sets, and may name several. :attr:`fewest` sites open each of them, and a site that has
    opened one is in no later set. So if ``fewest - 2`` other sites at most collude with the server, every combination
    of the sums has two honest sites' vectors with the same factor: of two that opened the first of these sums.

    ``least``: the fewest sites that open a sum, by the site's contract; None: by the number of its peers.
    ``peers``: the other sites whose signatures this one can check.
    ``session``: number of its newest session; -1 before the first.
    ``said``: its letter of that session, by which it was ready.
    ``named``, ``sent``: the newest session's set, and the answer to it.
    ``asked``, ``given``: the one letter that it has opened a sum for, and the answer.
    """

    name: str
    terms: Terms
    least: int | None
    peers: Mapping[str, Verify] = field(repr=False)
    session: int = -1
    private: bytes = field(default=b"", repr=False)
    own_share: bytes = field(default=b"", repr=False)
    said: Ready | None = None
    named: Named | None = None
    sent: Sent | None = None
    asked: Unmask | None = None
    given: Shares | None = None

    @property
    def fewest(self) -> int:
        """See :func:`fewest`."""
        return fewest(len(self.peers.keys() - {self.name}), self.least)

    def ready(
        self, session: int, terms: Terms, sign: Callable[[bytes], bytes], draw: Draw = secrets.token_bytes
    ) -> tuple[SiteSession, Ready]:
        """Begin ``session`` with a new key. The keys of the last one are forgotten. The same question again gets the
        same letter. Raises :class:`Refused`."""
        if self.given is not None:
            raise Refused("opened", "a sum of this attempt was opened already")
        if session == self.session and terms == self.terms and self.said is not None:
            return self, self.said
        if session <= self.session:
            raise Refused("wrong_session", f"{session}, this one is in {self.session}")
        if session >= SESSIONS:
            raise Refused("sessions", f"{SESSIONS} sets of this attempt had no sum")
        if replace(terms, threshold=0, largest=0.0) != replace(self.terms, threshold=0, largest=0.0):
            raise Refused("wrong_plan", "an earlier set of this attempt was for other terms")
        if terms.threshold < self.terms.threshold:
            message = f"{terms.threshold}, an earlier set of this attempt had {self.terms.threshold}"
            raise Refused("threshold", message)
        private = draw(KEY)
        letter = Ready(self.name, session, terms.digest, masks.public_key(private))
        letter = replace(letter, signature=sign(letter.text()))
        begun = replace(self, terms=terms, session=session, private=private, said=letter)
        return replace(begun, own_share=b"", named=None, sent=None), letter

    def masked(
        self, named: Named, numbers: NDArray[numpy.int64], draw: Draw = secrets.token_bytes
    ) -> tuple[SiteSession, Sent]:
        """Send the masked ``numbers`` to the set ``named``. The same set again gets the same letter. Raises
        :class:`Refused`."""
        if self.sent is not None and named == self.named:
            return self, self.sent
        if self.sent is not None:
            raise Refused("wrong_set", f"session {self.session} has another set already")
        self.check(named)
        ring, context = self.terms.ring, _context(self.terms, named)
        keys = {m.site: m.key for m in named.members}
        seed = draw(KEY)
        parts = shares.split(seed, self.terms.threshold, len(keys), lambda bound: _below(bound, draw))
        points = _points(named)
        try:
            pairs = {
                site: masks.agreed(self.private, keys[site], "mask", context) for site in keys if site != self.name
            }
        except ValueError:
            raise Refused("wrong_key", "a site's key has a low order") from None
        sealed = {
            site: masks.seal(self._share_key(self.name, site, keys[site], context), parts[points[site]], context)
            for site in pairs
        }
        before = [pair for site, pair in pairs.items() if site < self.name]
        after = [pair for site, pair in pairs.items() if site > self.name]
        vector = masks.to_ring(numbers, ring) + masks.mask(seed, before, after, len(numbers), ring)
        letter = Sent(self.name, self.session, vector, sealed)
        return replace(self, named=named, sent=letter, own_share=parts[points[self.name]]), letter

    def check(self, named: Named) -> None:
        """Raise :class:`Refused` unless ``named`` is a set that this site may mask for."""
        if named.session != self.session or not self.private:
            raise Refused("wrong_session", f"{named.session}, this one is in {self.session}")
        names, own = [m.site for m in named.members], masks.public_key(self.private)
        if names != sorted(set(names)):
            raise Refused("wrong_set", "its sites are not in order, or one is there twice")
        if not any(m.site == self.name and m.key == own for m in named.members):
            raise Refused("wrong_set", "it lacks this site, or has another key of it")
        for member in named.members:
            if member.session != self.session:
                raise Refused("wrong_session", f"{member.site} is in {member.session}")
            if member.terms != self.terms.digest:
                why = "it was sent another model, or another plan, than this site"
                raise Refused("wrong_plan", f"{member.site} has agreed to other terms: {why}")
            if member.site != self.name:
                verify = self.peers.get(member.site)
                if verify is None:
                    raise Refused("wrong_peer", f"{member.site} is not among the peers of this site")
                if not verify(member.signature, member.text()):
                    raise Refused("wrong_signature", f"{member.site} has not signed this key")
        least = max(self.fewest, self.terms.threshold)
        if len(names) < least:
            raise Refused("few_sites", f"{len(names)} sites, the contract and the threshold ask for {least}")
        needed = max(self.fewest, threshold_of(len(names)))
        if self.terms.threshold < needed:
            raise Refused("threshold", f"{self.terms.threshold} of {len(names)} sites open a sum, {needed} are needed")

    def unmask(self, letter: Unmask) -> tuple[SiteSession, Shares]:
        """Open the shares of the set, once in an attempt, and forget the keys. The same letter again gets the same
        answer. Raises :class:`Refused`."""
        if self.given is not None:
            if letter == self.asked:
                return self, self.given
            raise Refused("repeated", "a sum of this attempt was opened already")
        if letter.session != self.session or self.named is None:
            raise Refused("wrong_session", f"{letter.session}, it has masked for {self.session}")
        names = tuple(m.site for m in self.named.members)
        if letter.members != names or letter.sealed.keys() != {n for n in names if n != self.name}:
            raise Refused("wrong_set", "it has masked for another set")
        context, found = _context(self.terms, self.named), {self.name: self.own_share}
        for member in self.named.members:
            if member.site != self.name:
                key = self._share_key(member.site, self.name, member.key, context)
                try:
                    found[member.site] = masks.unseal(key, letter.sealed[member.site], context)
                except ValueError as error:
                    raise Refused("wrong_share", f"{member.site}: {error}") from None
        answer = Shares(self.name, self.session, found)
        return replace(self, asked=letter, given=answer, private=b"", own_share=b"", named=None, sent=None), answer

    def _share_key(self, sender: str, reader: str, public: bytes, context: bytes) -> bytes:
        return masks.agreed(self.private, public, f"share {sender!r} to {reader!r}", context)


def _points(named: Named) -> dict[str, int]:
    """The point of each site's shares."""
    return {member.site: k for k, member in enumerate(named.members, 1)}


def _context(terms: Terms, named: Named) -> bytes:
    """All that the masks of a session depend on: with any difference, they do not cancel."""
    members = [(m.site, m.key.hex()) for m in named.members]
    return masks.digest("rondo session 1", terms.digest.hex(), named.session, members)


def _below(bound: int, draw: Draw) -> int:
    """A uniform number below ``bound``."""
    bits = bound.bit_length()
    while True:
        value = int.from_bytes(draw((bits + 7) // 8)) >> (-bits % 8)
        if value < bound:
            return value
