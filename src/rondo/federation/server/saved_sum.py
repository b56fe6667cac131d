"""The server's state of a masked sum in the run directory, ``sum.session``, which its owner alone can read.

The number of a session and its threshold are there before a site is asked for a key, and the masked sum before a seed
is asked for. A server that was killed goes on with the next session, or opens the same sum again: sites open no other.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy

from rondo.engine.wire import masked
from rondo.engine.wire.strict import Rejected
from rondo.privacy.masking.opening import ServerSession
from rondo.privacy.masking.session import Terms
from rondo.records import private_file
from rondo.records.durable import Damaged, written

FILE = "sum.session"


@dataclass(frozen=True)
class Complete:
    """A set whose every site has sent its masked vector.

    ``of``: digest of the upload that learned nothing, on which the sum is to be added.
    ``clients``: the clients in the sum, by site.
    ``weights``: of each client's upload.
    ``up``: bytes of masked vectors that came, by site.
    """

    of: str
    session: ServerSession
    clients: Mapping[str, tuple[str, ...]]
    weights: Mapping[str, float]
    up: Mapping[str, int]


@dataclass
class SavedSum:
    """The file in the folder ``path``; None as long as there is no run directory.

    ``run``: the run's name.
    """

    run: str
    path: Path | None = None
    _content: tuple[dict[str, Any], bytes] | None = field(default=None, repr=False)

    def sessions(self, attempt: int) -> tuple[int, int]:
        """The number of the newest session of ``attempt``, and its threshold; (-1, 0) before the first."""
        header, _ = self._read()
        if (header.get("run"), header.get("attempt")) != (self.run, attempt):
            return -1, 0
        return int(header["session"]), int(header["threshold"])

    def complete(self, attempt: int) -> Complete | None:
        """The complete set of ``attempt``; None if there is none."""
        header, body = self._read()
        if (header.get("run"), header.get("attempt")) != (self.run, attempt) or "of" not in header:
            return None
        try:
            return _rebuilt(header, body)
        except (Rejected, KeyError, TypeError, ValueError):
            return None  # no sum of this attempt any more: sites open no other, so the round is skipped

    def begin(self, attempt: int, session: int, threshold: int) -> None:
        """Note that ``session`` begins. Raises :class:`~rondo.errors.DiskFailed`."""
        self._write({"run": self.run, "attempt": attempt, "session": session, "threshold": threshold}, b"")

    def keep(self, complete: Complete) -> None:
        """Note a complete set. Raises :class:`~rondo.errors.DiskFailed`."""
        session = complete.session
        named, total, terms = session.named, session.total, session.terms
        assert named is not None
        assert total is not None
        sites = [m.site for m in named.members]
        letter = masked.AskMasked(terms.run, terms.attempt, named).encode()
        sealed = b"".join(session.sent[one][other] for one in sites for other in sites if other != one)
        header = {"run": self.run, "attempt": terms.attempt, "session": session.session, "threshold": terms.threshold}
        header |= {"of": complete.of, "terms": asdict(terms), "size": session.size, "letter": len(letter)}
        header |= {"clients": {site: list(c) for site, c in complete.clients.items()}}
        header |= {"weights": dict(complete.weights), "up": dict(complete.up)}
        self._write(header, letter + total.tobytes() + sealed)

    def _write(self, header: dict[str, Any], body: bytes) -> None:
        self._content = header, body
        if self.path is not None:
            with written(self.path):
                private_file.write(self.path / FILE, header, body)

    def _read(self) -> tuple[dict[str, Any], bytes]:
        """Header and body; nothing where the file is missing or damaged."""
        if self._content is None:
            self._content = {}, b""
            with suppress(Damaged):
                saved = None if self.path is None else private_file.read(self.path / FILE)
                self._content = saved or self._content
        return self._content


def _rebuilt(header: Mapping[str, Any], body: bytes) -> Complete:
    terms = Terms(**{**header["terms"], "tensors": tuple(header["terms"]["tensors"])})
    size, start = int(header["size"]), int(header["letter"])
    named = masked.AskMasked.decode(body[:start]).named
    sites = [m.site for m in named.members]
    end = start + size * terms.ring // 8
    total = numpy.frombuffer(body[start:end], numpy.dtype(f"<u{terms.ring // 8}"))
    pairs = [(one, other) for one in sites for other in sites if other != one]
    length = (len(body) - end) // max(1, len(pairs))
    sent: dict[str, dict[str, bytes]] = {site: {} for site in sites}
    for k, (one, other) in enumerate(pairs):
        sent[one][other] = body[end + k * length : end + (k + 1) * length]
    ready = {m.site: m for m in named.members}
    session = ServerSession(terms, size, int(header["session"]), ready, named, sent, total)
    clients = {site: tuple(c) for site, c in header["clients"].items()}
    weights = {client: float(weight) for client, weight in header["weights"].items()}
    return Complete(header["of"], session, clients, weights, {site: int(n) for site, n in header["up"].items()})
