"""A site's part in masked sums on its disk: what its clients learned in the last attempt, and the attempt's letters.

Both files can be read by their owner alone. Each is on the disk before the letter leaves that follows from it: a site
that forgets which set it has opened could open another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torch import Tensor

from rondo.engine.wire import masked, serialization
from rondo.engine.wire.strict import Rejected
from rondo.privacy.masking.session import SiteSession, Terms
from rondo.records import private_file
from rondo.records.durable import Damaged

_FILE = "sum.session"


@dataclass(frozen=True)
class Learned:
    """A client's change after training.

    ``index``, ``attempt``, ``population``: of the round.
    ``weight``: that of its upload.
    ``sent``: digest of what its training started from.
    ``names``: the tensors in ``change``, in its order.
    ``change``: (n,) in float64.
    """

    client: str
    index: int
    attempt: int
    population: int
    weight: float
    sent: str
    names: tuple[str, ...]
    change: Tensor


@dataclass(frozen=True)
class Attempt:
    """The state of an attempt: the site's session, and its clients in the sum."""

    session: SiteSession
    clients: tuple[str, ...]


@dataclass(frozen=True)
class SumState:
    """The files in ``folder``, which is one run's. ``name``: the site's."""

    folder: Path
    name: str

    def learned(self, client: str) -> Learned | None:
        """The last change of ``client``; None without one. Raises :class:`Damaged`."""
        content = private_file.read(self._of_client(client))
        if content is None:
            return None
        try:
            saved = serialization.unpack(content[1], Learned("", 0, 0, 0, 0.0, "", (), Tensor()))
        except ValueError as error:
            raise Damaged(str(error)) from None
        return saved if isinstance(saved, Learned) and saved.client == client else None

    def keep(self, learned: Learned) -> None:
        """Save the change of a client. Raises OSError."""
        private_file.write(self._of_client(learned.client), {}, serialization.pack(learned))

    def forget(self, client: str) -> None:
        """Delete the change of ``client``, which is in an opened sum."""
        self._of_client(client).unlink(missing_ok=True)

    def attempt(self, least: int | None, peers: Mapping[str, Callable[[bytes, bytes], bool]]) -> Attempt | None:
        """The last attempt; None before the first. ``least``, ``peers``: as in
        :class:`~rondo.privacy.masking.session.SiteSession`. Raises :class:`Damaged`."""
        content = private_file.read(self.folder / _FILE)
        if content is None:
            return None
        try:
            return self._rebuilt(*content, least, peers)
        except (Rejected, ValueError, KeyError, TypeError) as error:
            raise Damaged(str(error)) from None

    def save(self, attempt: Attempt) -> None:
        """Save the state of an attempt. Raises OSError."""
        session = attempt.session
        named, asked, run, number = session.named, session.asked, session.terms.run, session.terms.attempt
        letters = [b""] * 5
        if session.said is not None:
            letters[0] = masked.encode_ready(session.said)
        if named is not None and session.sent is not None:
            letters[1] = masked.AskMasked(run, number, named).encode()
            letters[2] = masked.encode_sent(session.sent, [m.site for m in named.members])
        if asked is not None and session.given is not None:
            letters[3] = masked.AskShares(run, number, asked).encode(self.name)
            letters[4] = masked.encode_shares(session.given, asked.members)
        header = {
            "terms": asdict(session.terms),
            "session": session.session,
            "private": session.private.hex(),
            "own_share": session.own_share.hex(),
            "clients": attempt.clients,
            "numbers": 0 if session.sent is None else len(session.sent.vector),
            "letters": list(map(len, letters)),
        }
        private_file.write(self.folder / _FILE, header, b"".join(letters))

    def _rebuilt(
        self,
        header: Mapping[str, Any],
        body: bytes,
        least: int | None,
        peers: Mapping[str, Callable[[bytes, bytes], bool]],
    ) -> Attempt:
        letters, start = [], 0
        for size in header["letters"]:
            letters.append(body[start : start + size])
            start += size
        terms = Terms(**{**header["terms"], "tensors": tuple(header["terms"]["tensors"])})
        said = masked.decode_ready(letters[0], self.name) if letters[0] else None
        named = masked.AskMasked.decode(letters[1]).named if letters[1] else None
        asked = masked.AskShares.decode(letters[3], self.name).unmask if letters[3] else None
        sent = given = None
        if named is not None:
            members = [m.site for m in named.members]
            sent = masked.decode_sent(letters[2], self.name, members, header["numbers"], terms.ring)
        if asked is not None:
            given = masked.decode_shares(letters[4], self.name, asked.members)
        secret, share = bytes.fromhex(header["private"]), bytes.fromhex(header["own_share"])
        number = header["session"]
        session = SiteSession(
            self.name, terms, least, peers, number, secret, share, said, named, sent, asked=asked, given=given
        )
        return Attempt(session, tuple(header["clients"]))

    def _of_client(self, client: str) -> Path:
        return self.folder / f"{quote(client, safe='')}.change"
