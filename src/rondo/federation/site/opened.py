"""In whose company each change of a site's clients was opened, over all runs.

Training is deterministic, so a plan that runs twice sends the same changes twice. Each run opens one sum; where a site
takes part in one of them only, the difference of both sums is what that site sent. So the same change is opened in the
same company, or never again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from rondo.privacy.session import Refused
from rondo.runs.storage import private_file
from rondo.runs.storage.durable import Damaged

FILE = "opened.sums"


@dataclass(frozen=True)
class Opened:
    """The record in a site's ``folder``: digests of changes that learned something, and with whom each was opened."""

    folder: Path

    def check(self, changes: Iterable[Tensor], company: Sequence[str]) -> dict[str, list[str]]:
        """The record with ``changes``, (n,) each, opened in ``company``: the sites of the set and this site's clients.
        Raises :class:`Refused` where one was opened in another company."""
        known = self._read()
        for digest in _digests(changes):
            if known.setdefault(digest, sorted(company)) != sorted(company):
                message = (
                    "another run has opened a sum with the same training of this site and other sites or clients, and "
                    "the difference of both would tell what one of them sent: take another seed, or the same sites"
                )
                raise Refused("opened", message)
        return known

    def note(self, changes: Iterable[Tensor], company: Sequence[str]) -> None:
        """Write down that ``changes`` are opened in ``company``. Raises as :meth:`check` does, and OSError."""
        private_file.write(self.folder / FILE, self.check(changes, company), b"")

    def _read(self) -> dict[str, list[str]]:
        try:
            content = private_file.read(self.folder / FILE)
        except Damaged as error:
            raise Refused("damaged", f"{error}, so this site cannot know which sums it has opened") from None
        return {} if content is None else content[0]


def _digests(changes: Iterable[Tensor]) -> Iterator[str]:
    for change in changes:
        if change.any():
            yield hashlib.sha256(change.numpy().astype("<f8", copy=False).tobytes()).hexdigest()
