"""The record of all that a site has opened without noise, over all runs.

Training follows from the seed, so two runs of one seed that differ by a site, a setting or a row send nearly the same
changes, and the difference of their sums is that of one site. So a seed is for one run, and a round of it is opened in
one company. Where no seed decides what is trained (whole tensors, all rows in one step), two seeds send the same
changes too: those are opened in one company, or never again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from rondo.privacy.masking.session import Refused
from rondo.records import private_file
from rondo.records.durable import Damaged

FILE = "opened.sums"
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
            content = private_file.read(self.folder / FILE)
        except Damaged as error:
            raise Refused("damaged", f"{error}, so this site cannot know which sums it has opened") from None
        return {"seeds": {}, "changes": {}} if content is None else content[0]

    def _write(self, known: dict[str, Any]) -> None:
        private_file.write(self.folder / FILE, known, b"")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[: _BITS // 4]
