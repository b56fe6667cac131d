"""Letters of secure aggregation between a server and a site, as bytes (:mod:`rondo.privacy.masking.session`).

A letter is a JSON header of known length and, after it, the parts of fixed length: keys, shares, and the masked vector.
Neither side trusts anything in a letter, and neither takes one that is longer than an honest one can be. Every decoder
raises :class:`~rondo.engine.wire.envelope.Rejected`, and nothing else, whatever the bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from rondo.engine.wire.envelope import Rejected, short, strict_object
from rondo.privacy.masking import masks, shares
from rondo.privacy.masking.fixed_point import Ring
from rondo.privacy.masking.session import SESSIONS, Named, Ready, Sent, Shares, Unmask

PROTOCOL = 1
LARGEST = 2**20
"""Bytes that no honest letter reaches, without the vector: sets of a thousand sites have half of it."""
_LENGTH = 8
_SEALED = shares.SHARE + 16
"""Bytes of a sealed share: ChaCha20-Poly1305 adds 16."""
_DIGEST = 32
_SIGNATURE = 160
"""Bytes of the longest signature: on P-521, in DER, it has 139."""
_NAME = 128
"""Bytes of the longest name of a site."""
_LINE = 1000
"""Characters of the longest text."""
_MOST = 2**53


# --- to a site ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AskReady:
    """Asks a site for a key: its clients have trained.

    ``clients``: the site's clients whose uploads shall be in its vector.
    ``largest``, ``threshold``: see :class:`~rondo.privacy.masking.session.Terms`.
    """

    run: str
    attempt: int
    session: int
    threshold: int
    largest: float
    clients: tuple[str, ...]

    def encode(self) -> bytes:
        """The letter as bytes."""
        header = {"session": self.session, "threshold": self.threshold, "largest": self.largest}
        return _framed({"run": self.run, "attempt": self.attempt, **header, "clients": self.clients})

    @staticmethod
    def decode(data: bytes) -> AskReady:
        """The letter from :meth:`encode`."""
        header, body = _parts(data, ("run", "attempt", "session", "threshold", "largest", "clients"))
        clients, largest = header["clients"], header["largest"]
        if not isinstance(largest, int | float) or isinstance(largest, bool) or not 0 < largest < _MOST:
            raise Rejected("unreadable", f"largest is {short(largest)}")
        if not (isinstance(clients, list) and clients and all(map(_is_line, clients)) and not body):
            raise Rejected("unreadable", "clients are no names")
        run, attempt, session = _where(header)
        return AskReady(run, attempt, session, _count(header, "threshold"), float(largest), tuple(clients))


@dataclass(frozen=True)
class AskMasked:
    """Asks a site for its masked vector. ``named``: the set."""

    run: str
    attempt: int
    named: Named

    def encode(self) -> bytes:
        """The letter as bytes."""
        named = self.named
        sites = [member.site for member in named.members]
        lengths = [len(member.signature) for member in named.members]
        body = b"".join(m.key + m.terms + m.signature for m in named.members)
        where = {"run": self.run, "attempt": self.attempt, "session": named.session}
        return _framed({**where, "sites": sites, "signatures": lengths}, body)

    @staticmethod
    def decode(data: bytes) -> AskMasked:
        """The letter from :meth:`encode`."""
        header, body = _parts(data, ("run", "attempt", "session", "sites", "signatures"))
        (run, attempt, session), sites, lengths = _where(header), _sites(header["sites"]), header["signatures"]
        if not (
            isinstance(lengths, list)
            and len(lengths) == len(sites)
            and all(type(n) is int and 0 <= n <= _SIGNATURE for n in lengths)
        ):
            raise Rejected("unreadable", "signatures have no lengths")
        sizes = [size for length in lengths for size in (masks.KEY, _DIGEST, length)]
        parts = iter(_cut(body, sizes))
        members = tuple(
            Ready(site, session, terms=terms, key=key, signature=signature)
            for site, key, terms, signature in zip(sites, parts, parts, parts, strict=True)
        )
        return AskMasked(run, attempt, Named(session, members))


@dataclass(frozen=True)
class AskShares:
    """Asks a site for its shares of the seeds. ``unmask``: the set, and the shares that are sealed for this site."""

    run: str
    attempt: int
    unmask: Unmask

    def encode(self, site: str) -> bytes:
        """The letter to ``site`` as bytes."""
        unmask = self.unmask
        body = b"".join(unmask.sealed[other] for other in unmask.members if other != site)
        where = {"run": self.run, "attempt": self.attempt, "session": unmask.session}
        return _framed({**where, "sites": list(unmask.members)}, body)

    @staticmethod
    def decode(data: bytes, site: str) -> AskShares:
        """The letter from :meth:`encode`, to ``site``."""
        header, body = _parts(data, ("run", "attempt", "session", "sites"))
        (run, attempt, session), sites = _where(header), _sites(header["sites"])
        sealed = _by_site(body, [name for name in sites if name != site], _SEALED)
        return AskShares(run, attempt, Unmask(session, sites, sealed))


# --- from a site --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refusal:
    """A site does not answer a letter: a short code, and the circumstances in words."""

    reason: str
    detail: str

    def encode(self) -> bytes:
        """The letter as bytes."""
        return _framed({"reason": self.reason, "detail": self.detail})


def encode_ready(letter: Ready) -> bytes:
    """``letter`` as bytes. The line says which site it came from."""
    body = letter.key + letter.terms + letter.signature
    return _framed({"session": letter.session}, body)


def decode_ready(data: bytes, site: str) -> Ready:
    """The letter of ``site`` from :func:`encode_ready`."""
    header, body = _answer(data, LARGEST)
    fixed = masks.KEY + _DIGEST
    if not fixed <= len(body) <= fixed + _SIGNATURE:
        raise Rejected("unreadable", f"{len(body)} bytes for a key and its signature")
    key, terms, signature = _cut(body, [masks.KEY, _DIGEST, len(body) - fixed])
    return Ready(site, _session(header), terms=terms, key=key, signature=signature)


def encode_sent(letter: Sent, members: Sequence[str]) -> bytes:
    """``letter`` to the set ``members`` as bytes."""
    sealed = b"".join(letter.sealed[other] for other in members if other != letter.site)
    return _framed({"session": letter.session}, letter.vector.tobytes() + sealed)


def largest_sent(numbers: int, ring: Ring) -> int:
    """Bytes of the largest letter with a vector of so many numbers."""
    return LARGEST + numbers * ring // 8


def decode_sent(data: bytes, site: str, members: Sequence[str], numbers: int, ring: Ring) -> Sent:
    """The letter of ``site`` from :func:`encode_sent`, with so many numbers."""
    header, body = _answer(data, largest_sent(numbers, ring))
    size = numbers * ring // 8
    if len(body) < size:
        raise Rejected("unreadable", f"{len(body)} bytes, a vector has {size}")
    vector = numpy.frombuffer(body[:size], numpy.dtype(f"<u{ring // 8}"))
    return Sent(site, _session(header), vector, _by_site(body[size:], [n for n in members if n != site], _SEALED))


def encode_shares(letter: Shares, members: Sequence[str]) -> bytes:
    """``letter`` of a site of the set ``members`` as bytes."""
    return _framed({"session": letter.session}, b"".join(letter.shares[name] for name in members))


def decode_shares(data: bytes, site: str, members: Sequence[str]) -> Shares:
    """The letter of ``site`` from :func:`encode_shares`."""
    header, body = _answer(data, LARGEST)
    return Shares(site, _session(header), _by_site(body, members, shares.SHARE))


# --- headers and bodies -------------------------------------------------------------------------------------------


def _framed(header: Mapping[str, Any], body: bytes = b"") -> bytes:
    text = json.dumps({"protocol": PROTOCOL, **header}).encode()
    return len(text).to_bytes(_LENGTH, "little") + text + body


def _parts(data: bytes, keys: Sequence[str], largest: int = LARGEST) -> tuple[dict[str, Any], bytes]:
    """The header, with exactly these keys, and the body."""
    if len(data) > largest:
        raise Rejected("too_large", f"{len(data)} bytes")
    size = int.from_bytes(data[:_LENGTH], "little")
    if len(data) < _LENGTH or size > min(LARGEST, len(data) - _LENGTH):
        raise Rejected("unreadable", f"{len(data)} bytes with a header of {size}")
    header = strict_object("unreadable", "the letter's header", data[_LENGTH : _LENGTH + size])
    protocol = header.pop("protocol", None)
    if protocol is True or protocol != PROTOCOL:
        raise Rejected("wrong_protocol", f"{short(protocol)}, where {PROTOCOL} is spoken")
    if header.keys() != set(keys):
        raise Rejected("unreadable", f"the letter's keys are {short(sorted(header))}")
    return header, data[_LENGTH + size :]


def _answer(data: bytes, largest: int) -> tuple[dict[str, Any], bytes]:
    """The header and the body of an answer. A refusal is raised as :class:`Rejected`, with its own reason."""
    try:
        return _parts(data, ("session",), largest)
    except Rejected as rejection:
        try:
            header, _ = _parts(data, ("reason", "detail"), largest)
        except Rejected:
            raise rejection from None
        if not (_is_line(header["reason"]) and isinstance(header["detail"], str)):
            raise rejection from None
        raise Rejected("refused", f"{header['reason']}: {short(header['detail'])}") from None


def _where(header: Mapping[str, Any]) -> tuple[str, int, int]:
    if not _is_line(header["run"]):
        raise Rejected("unreadable", f"run is {short(header['run'])}")
    return header["run"], _count(header, "attempt"), _session(header)


def _session(header: Mapping[str, Any]) -> int:
    session = _count(header, "session")
    if session >= SESSIONS:
        raise Rejected("sessions", f"session is {session}, an attempt has {SESSIONS}")
    return session


def _count(header: Mapping[str, Any], key: str) -> int:
    value = header[key]
    if type(value) is not int or not 0 <= value < _MOST:
        raise Rejected("unreadable", f"{key} is {short(value)}")
    return value


def _sites(value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(_is_line(name) and len(name.encode()) <= _NAME for name in value):
        raise Rejected("unreadable", "sites are no names")
    return tuple(value)


def _is_line(value: object) -> bool:
    """Whether ``value`` is a text of a line at most, which can be written to a file."""
    return isinstance(value, str) and len(value) <= _LINE and value.isprintable()


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
