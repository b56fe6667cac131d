"""Attempts of secure aggregation, in which letters are lost or come late, for tests."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy
from numpy.typing import NDArray

from rondo.privacy.masking.integers import Ring
from rondo.privacy.masking.opening import NoSum, ServerSession
from rondo.privacy.masking.session import Sent, Shares, SiteSession, Terms
from rondo.privacy.masking.shares import threshold_of


def terms_for(count: int, ring: Ring = 32, **changes: object) -> Terms:
    facts = {"run": "r", "attempt": 3, "model": "m", "plan": "p", "sent": "s", "tensors": ("w.A", "w.B"), "ring": ring}
    facts |= {"fraction": 20, "largest": 1.0}
    return Terms(**{"threshold": threshold_of(count), **facts, **changes})  # type: ignore[arg-type]


def signs(name: str, text: bytes) -> bytes:
    """A signature that costs nothing, for tests that are not about signatures."""
    return name.encode() + text


def make_sites(names: Sequence[str], terms: Terms, least: int | None = 2) -> dict[str, SiteSession]:
    peers = {n: lambda signature, text, n=n: signature == signs(n, text) for n in names}
    return {n: SiteSession(n, terms, least, peers) for n in names}


@dataclass
class Attempt:
    """One attempt's letters.

    ``sent``, ``given``: every masked vector and every letter with shares that ever left a site. A letter that is lost
    to the protocol is not lost to a server that says so, nor to whoever listens.
    ``received``, ``answers``: those of them that the server says it got, late ones too.
    ``opened``: the sites whose sum was opened, with the sum; None without one.
    ``late``: sites of void sessions whose letter came after all.
    """

    sent: list[Sent] = field(default_factory=list)
    given: list[Shares] = field(default_factory=list)
    received: list[Sent] = field(default_factory=list)
    answers: list[Shares] = field(default_factory=list)
    sets: list[tuple[str, ...]] = field(default_factory=list)
    opened: tuple[tuple[str, ...], NDArray[numpy.int64]] | None = None
    late: int = 0
    reason: str = ""


def play(
    vectors: dict[str, NDArray[numpy.int64]], terms: Terms, luck: random.Random, loss: float, late: float = 0.5
) -> Attempt:
    """Play an attempt in which every letter is lost with probability ``loss``. Of lost masked vectors, the share
    ``late`` comes after their session is void."""
    attempt, sites, here = Attempt(), make_sites(list(vectors), terms), list(vectors)
    server = ServerSession(terms, len(next(iter(vectors.values()))))
    try:
        while True:
            luck.shuffle(here)
            for name in here:
                sign = partial(signs, name)
                sites[name], ready = sites[name].ready(server.session, terms, sign, luck.randbytes)
                server = server if luck.random() < loss else server.with_ready(ready)
            server, named = server.name_set()
            attempt.sets.append(tuple(m.site for m in named.members))
            belated = []
            for name in luck.sample(attempt.sets[-1], len(attempt.sets[-1])):
                sites[name], sent = sites[name].masked(named, vectors[name], luck.randbytes)
                attempt.sent.append(sent)
                if luck.random() < loss:
                    belated += [sent] if luck.random() < late else []
                else:
                    attempt.received.append(sent)
                    server = server.with_sent(sent)
            if server.complete:
                break
            here = list(server.sent)
            server = server.again()
            for sent in belated:
                attempt.received.append(sent)
                attempt.late += 1
                assert server.with_sent(sent) is server
        for name, letter in server.unmask().items():
            if luck.random() < loss:  # the question is lost
                continue
            sites[name], answer = sites[name].unmask(letter)
            attempt.given.append(answer)
            if luck.random() >= loss:
                attempt.answers.append(answer)
                server = server.with_shares(answer)
        attempt.opened = attempt.sets[-1], server.sum()
    except NoSum as reason:
        attempt.reason = str(reason)
    return attempt
