"""A site's part in masked sums on its disk: of a run, what its clients learned in the last attempt, and the attempt's
letters; and over all runs, all that the site has opened without noise.

The files can be read by their owner alone. Each is on the disk before the letter leaves that follows from it: a site
that forgets which set it has opened could open another.

Training follows from the seed, so two runs of one seed that differ by a site, a setting or a row send nearly the same
changes, and the difference of their sums is that of one site. So a seed is for one run, and a round of it is opened in
one company. Where no seed decides what is trained (whole tensors, all rows in one step), two seeds send the same
changes too: those are opened in one company, or never again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from torch import Tensor

from rondo.engine.wire import masked, serialization
from rondo.engine.wire.strict import Rejected
from rondo.privacy.masking.session import Refused, SiteSession, Terms
from rondo.records import private_file
from rondo.records.durable import Damaged

_SESSION, OPENED = "sum.session", "opened.sums"


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
        content = private_file.read(self.folder / _SESSION)
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
        private_file.write(self.folder / _SESSION, header, b"".join(letters))

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


_SEEDS = 2**32
"""Seeds that differ by a multiple of it give the same start: torch's generators keep no more bits."""
_BITS = 128
"""Length of each digest in the record."""


@dataclass(frozen=True)
class Opened:
    """The record in a site's ``folder``, of the run ``run`` with ``seed``."""

    folder: Path
    run: str
    seed: int

    def check_seed(self) -> None:
        """Raise :class:`Refused` where the seed was another run's."""
        self._seed_of(self._read())

    def note_seed(self) -> None:
        """Write down that the seed is this run's, before a vector leaves. Raises as :meth:`check_seed` does, and
        OSError."""
        known = self._read()
        if "opened" not in self._seed_of(known):
            self._seed_of(known)["opened"] = -1
            self._write(known)

    def check(self, index: int, changes: Iterable[Tensor], company: Sequence[str]) -> dict[str, Any]:
        """The record with ``changes``, (n,) each, of the round ``index`` opened in ``company``: the sites of the set
        and this site's clients. Raises :class:`Refused` where that round, a later one, or one of the changes was opened
        in another."""
        known, digest = self._read(), _digest(repr(sorted(company)).encode())
        own = self._seed_of(known)
        if index < own.get("opened", -1) or (index == own.get("opened") and own["company"] != digest):
            message = "a sum of this round was opened with other sites or clients: start another run with another seed"
            raise Refused("opened", message)
        for change in changes:
            if change.any():
                name = _digest(change.numpy().astype("<f8", copy=False).tobytes())
                if known["changes"].setdefault(name, digest) != digest:
                    message = (
                        "a sum with the same training of this site was opened with other sites or clients: take "
                        "another seed, or the same sites"
                    )
                    raise Refused("opened", message)
        own.update(opened=index, company=digest)
        return known

    def note(self, index: int, changes: Iterable[Tensor], company: Sequence[str]) -> None:
        """Write down that ``changes`` are opened so. Raises as :meth:`check` does, and OSError."""
        self._write(self.check(index, changes, company))

    def _seed_of(self, known: dict[str, Any]) -> dict[str, Any]:
        """The record of the seed, which is this run's. Raises :class:`Refused`."""
        own: dict[str, Any] = known["seeds"].setdefault(str(self.seed % _SEEDS), {"run": self.run})
        if own["run"] != self.run:
            same = "" if self.seed < _SEEDS else f", the same as {self.seed % _SEEDS} to a start,"
            message = (
                f"set another seed in the server's configuration: {self.seed}{same} was another run's, and the "
                "difference of two sums of one seed can tell what one site sent"
            )
            raise Refused("opened", message)
        return own

    def _read(self) -> dict[str, Any]:
        try:
            content = private_file.read(self.folder / OPENED)
        except Damaged as error:
            raise Refused("damaged", f"{error}, so this site cannot know which sums it has opened") from None
        return {"seeds": {}, "changes": {}} if content is None else content[0]

    def _write(self, known: dict[str, Any]) -> None:
        private_file.write(self.folder / OPENED, known, b"")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[: _BITS // 4]
