"""Letters of secure aggregation between a server and a site, as bytes (:mod:`rondo.privacy.masking.session`).

A letter is a JSON header of known length and, after it, the parts of fixed length: keys, shares, and the masked vector.
Neither side trusts anything in a letter, and neither takes one that is longer than an honest one can be. Every decoder
raises :class:`~rondo.engine.wire.strict.Rejected`, and nothing else, whatever the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, TypeVar

import numpy
from pydantic import FailFast, Field, Strict

from rondo.engine.wire.strict import Count, Line, Lines, Rejected, framed, is_count, is_line, only, short, unframed
from rondo.privacy.masking import masks, shares
from rondo.privacy.masking.integers import Ring
from rondo.privacy.masking.session import SESSIONS, Named, Ready, Sent, Shares, Unmask

T = TypeVar("T")
LARGEST = 2**20
"""Bytes that no honest letter reaches, without the vector: sets of a thousand sites have half of it."""
_SEALED = shares.SHARE + 16
"""Bytes of a sealed share: ChaCha20-Poly1305 adds 16."""
_DIGEST = 32
_SIGNATURE = 160
"""Bytes of the longest signature: on P-521, in DER, it has 139."""
_NAME = 128
"""Bytes of the longest name of a site."""

_Session = Annotated[int, only(lambda value: is_count(value) and value < SESSIONS, f"a number below {SESSIONS}")]
_Site = Annotated[str, only(lambda value: is_line(value) and len(value.encode()) <= _NAME, "the name of a site")]
_Length = Annotated[int, only(lambda value: is_count(value) and value <= _SIGNATURE, "the length of a signature")]


# --- to a site ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AskReady:
    """Asks a site for a key: its clients have trained.

    ``clients``: the site's clients whose uploads shall be in its vector.
    ``largest``, ``threshold``: see :class:`~rondo.privacy.masking.session.Terms`.
    """

    run: Line
    attempt: Count
    session: _Session
    threshold: Count
    largest: Annotated[float, Field(gt=0, lt=2**53)]
    clients: Lines

    def encode(self) -> bytes:
        return framed(asdict(self))

    @staticmethod
    def decode(data: bytes) -> AskReady:
        asked, body = _parts(AskReady, data)
        if body or not asked.clients:
            raise Rejected("unreadable", f"{len(asked.clients)} clients, and {len(body)} bytes after the header")
        return asked


@dataclass(frozen=True)
class AskMasked:
    """Asks a site for its masked vector. ``named``: the set."""

    run: str
    attempt: int
    named: Named

    def encode(self) -> bytes:
        named = self.named
        sites = [member.site for member in named.members]
        lengths = [len(member.signature) for member in named.members]
        body = b"".join(m.key + m.terms + m.signature for m in named.members)
        where = {"run": self.run, "attempt": self.attempt, "session": named.session}
        return framed({**where, "sites": sites, "signatures": lengths}, body)

    @staticmethod
    def decode(data: bytes) -> AskMasked:
        set_, body = _parts(_SignedSet, data)
        if len(set_.signatures) != len(set_.sites):
            raise Rejected("unreadable", f"{len(set_.signatures)} signatures of {len(set_.sites)} sites")
        sizes = [size for length in set_.signatures for size in (masks.KEY, _DIGEST, length)]
        parts = iter(_cut(body, sizes))
        members = tuple(
            Ready(site, set_.session, terms=terms, key=key, signature=signature)
            for site, key, terms, signature in zip(set_.sites, parts, parts, parts, strict=True)
        )
        return AskMasked(set_.run, set_.attempt, Named(set_.session, members))


@dataclass(frozen=True)
class AskShares:
    """Asks a site for its shares of the seeds. ``unmask``: the set, and the shares that are sealed for this site."""

    run: str
    attempt: int
    unmask: Unmask

    def encode(self, site: str) -> bytes:
        unmask = self.unmask
        body = b"".join(unmask.sealed[other] for other in unmask.members if other != site)
        where = {"run": self.run, "attempt": self.attempt, "session": unmask.session}
        return framed({**where, "sites": list(unmask.members)}, body)

    @staticmethod
    def decode(data: bytes, site: str) -> AskShares:
        set_, body = _parts(_Set, data)
        sealed = _by_site(body, [name for name in set_.sites if name != site], _SEALED)
        return AskShares(set_.run, set_.attempt, Unmask(set_.session, set_.sites, sealed))


# --- from a site --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refusal:
    """A site does not answer a letter: a short code, and the circumstances in words."""

    reason: Line
    detail: str

    def encode(self) -> bytes:
        return framed(asdict(self))


def encode_ready(letter: Ready) -> bytes:
    """``letter`` as bytes. The line says which site it came from."""
    body = letter.key + letter.terms + letter.signature
    return framed({"session": letter.session}, body)


def decode_ready(data: bytes, site: str) -> Ready:
    session, body = _answer(data, LARGEST)
    fixed = masks.KEY + _DIGEST
    if not fixed <= len(body) <= fixed + _SIGNATURE:
        raise Rejected("unreadable", f"{len(body)} bytes for a key and its signature")
    key, terms, signature = _cut(body, [masks.KEY, _DIGEST, len(body) - fixed])
    return Ready(site, session, terms=terms, key=key, signature=signature)


def encode_sent(letter: Sent, members: Sequence[str]) -> bytes:
    sealed = b"".join(letter.sealed[other] for other in members if other != letter.site)
    return framed({"session": letter.session}, letter.vector.tobytes() + sealed)


def largest_sent(numbers: int, ring: Ring) -> int:
    """Bytes of the largest letter with a vector of so many numbers."""
    return LARGEST + numbers * ring // 8


def decode_sent(data: bytes, site: str, members: Sequence[str], numbers: int, ring: Ring) -> Sent:
    session, body = _answer(data, largest_sent(numbers, ring))
    size = numbers * ring // 8
    if len(body) < size:
        raise Rejected("unreadable", f"{len(body)} bytes, a vector has {size}")
    vector = numpy.frombuffer(body[:size], numpy.dtype(f"<u{ring // 8}"))
    return Sent(site, session, vector, _by_site(body[size:], [n for n in members if n != site], _SEALED))


def encode_shares(letter: Shares, members: Sequence[str]) -> bytes:
    return framed({"session": letter.session}, b"".join(letter.shares[name] for name in members))


def decode_shares(data: bytes, site: str, members: Sequence[str]) -> Shares:
    session, body = _answer(data, LARGEST)
    return Shares(site, session, _by_site(body, members, shares.SHARE))


# --- headers and bodies -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Set:
    """The header of a letter to each site of a set."""

    run: Line
    attempt: Count
    session: _Session
    sites: Annotated[tuple[_Site, ...], Strict(False), FailFast()]


@dataclass(frozen=True)
class _SignedSet(_Set):
    """The same, with the lengths of the sites' signatures."""

    signatures: Annotated[tuple[_Length, ...], Strict(False), FailFast()]


@dataclass(frozen=True)
class _AnswerHeader:
    """The header of an answer."""

    session: _Session


def _parts(shape: type[T], data: bytes, largest: int = LARGEST) -> tuple[T, bytes]:
    """The header, of the fields of ``shape``, and the body."""
    if len(data) > largest:
        raise Rejected("too_large", f"{len(data)} bytes")
    return unframed(shape, data, LARGEST)


def _answer(data: bytes, largest: int) -> tuple[int, bytes]:
    """The session and the body of an answer. A refusal is raised as :class:`Rejected`, with its own reason."""
    try:
        answered, body = _parts(_AnswerHeader, data, largest)
        return answered.session, body
    except Rejected as rejection:
        try:
            refusal, _ = _parts(Refusal, data, largest)
        except Rejected:
            raise rejection from None
        raise Rejected("refused", f"{refusal.reason}: {short(refusal.detail)}") from None


def _by_site(body: bytes, sites: Sequence[str], size: int) -> dict[str, bytes]:
    """Parts of ``size`` bytes, one for each of ``sites``."""
    return dict(zip(sites, _cut(body, [size] * len(sites)), strict=True))


def _cut(body: bytes, sizes: Sequence[int]) -> list[bytes]:
    if len(body) != sum(sizes):
        raise Rejected("unreadable", f"{len(body)} bytes, expected are {sum(sizes)}")
    parts, start = [], 0
    for size in sizes:
        parts.append(body[start : start + size])
        start += size
    return parts
