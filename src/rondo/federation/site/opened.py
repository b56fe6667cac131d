"""What a site has opened of each training, over all runs.

Training is deterministic, so a plan that runs twice sends the same changes twice, and each run opens one sum. Where the
second has a site less, or one site's change is scaled or trained in another way, the difference of both sums is of that
site alone. So a training is opened once: as the same integers, in the same company.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
from numpy.typing import NDArray
from torch import Tensor

from rondo.privacy.session import Refused
from rondo.runs.storage import private_file
from rondo.runs.storage.durable import Damaged

FILE = "opened.sums"
_BITS = 128
"""Of each digest in the record."""


@dataclass(frozen=True)
class Training:
    """What a client's training follows from, beside its rows and the plan, and the change of it, (n,) in float64."""

    model: str
    seed: int
    attempt: int
    client: str
    change: Tensor

    def digests(self) -> Iterator[str]:
        """By which the record knows it: by its start, and by its end where that learned something. Runs of other seeds
        can end alike, where all rows are in one step."""
        yield _digest(repr((self.model, self.seed, self.attempt, self.client)).encode())
        if self.change.any():
            yield _digest(self.change.numpy().astype("<f8", copy=False).tobytes())


@dataclass(frozen=True)
class Opened:
    """The record in a site's ``folder``: digests of trainings, and of what was opened of each."""

    folder: Path

    def check(
        self, trainings: Iterable[Training], numbers: NDArray[numpy.int64], company: Sequence[str]
    ) -> Mapping[str, str]:
        """The record with ``trainings`` opened as ``numbers``, (n,), the integers of this site's vector without masks
        and noise, in ``company``: the sites of the set and this site's clients. Raises :class:`Refused` where one was
        opened otherwise."""
        known = self._read()
        summed = _digest(repr(sorted(company)).encode() + numbers.astype("<i8", copy=False).tobytes())
        for digest in (digest for training in trainings for digest in training.digests()):
            if known.setdefault(digest, summed) != summed:
                message = (
                    "take another seed: a run has opened this training with other sites, settings or rows, and the "
                    "difference of both sums would tell what one site sent"
                )
                raise Refused("opened", message)
        return known

    def note(self, trainings: Iterable[Training], numbers: NDArray[numpy.int64], company: Sequence[str]) -> None:
        """Write down that ``trainings`` are opened so. Raises as :meth:`check` does, and OSError."""
        private_file.write(self.folder / FILE, self.check(trainings, numbers, company), b"")

    def _read(self) -> dict[str, str]:
        try:
            content = private_file.read(self.folder / FILE)
        except Damaged as error:
            raise Refused("damaged", f"{error}, so this site cannot know which sums it has opened") from None
        return {} if content is None else content[0]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[: _BITS // 4]
