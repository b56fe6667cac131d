"""A site's disk: the tensors that each of its clients needs after a restart, and a new start where they are lost."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from rondo.engine.client.party import LOST, NONE, Holdings, Party
from rondo.engine.wire import serialization
from rondo.errors import ConfigError
from rondo.federation.plan import NotAPlan, Plan
from rondo.federation.program import only_program
from rondo.params import Params
from rondo.records import durable

PLAN = "plan.json"
"""The file of the last plan that the site consented to."""
_DIGEST = 32


@dataclass(frozen=True)
class _Saved:
    """A party's state. ``attempt`` and ``trained`` are its ``pending``; ``NONE`` if it has none."""

    client: str
    kept: dict[str, Params]
    holdings: Holdings
    attempt: int
    trained: Params
    counted: int


_LIKE = _Saved("", {}, Holdings(), NONE, {}, NONE)


@dataclass(frozen=True)
class Disk:
    """The folder ``path`` of a site. ``run``: the run's name."""

    path: Path
    run: str

    def load(self, party: Party) -> str | None:
        """Give ``party`` the state that it was saved with. Returns a sentence if the state is there and damaged; the
        client then has no state, and trains again once its owner gives up what is lost."""
        try:
            data = self._file(party.id).read_bytes()
        except FileNotFoundError:
            return None
        try:
            if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
                raise ValueError("its digest differs")
            saved = serialization.unpack(data[_DIGEST:], _LIKE)
            if saved.client != party.id:
                raise ValueError(f"it is of {saved.client!r}")
        except ValueError as error:
            return f"{self._file(party.id)} is damaged ({error}): what {party.id} kept for itself is lost"
        party.kept.update(saved.kept)
        party.holdings = saved.holdings
        party.pending = (saved.attempt, saved.trained) if saved.attempt >= 0 else None
        party.counted = saved.counted
        return None

    def save(self, party: Party) -> None:
        """Save ``party`` in one step. Raises OSError and then changes nothing."""
        attempt, trained = party.pending or (NONE, {})
        kept = {client: tensors for client, tensors in party.kept.items() if client == party.id}
        self._write(_Saved(party.id, kept, party.holdings, attempt, trained, party.counted))

    def start_over(self, client: str) -> None:
        """Give up what ``client`` has kept, whatever its server counts. Raises OSError and then changes nothing."""
        self._write(replace(_LIKE, client=client, counted=LOST))

    def _write(self, saved: _Saved) -> None:
        content = serialization.pack(saved)
        file = self._file(saved.client)
        file.parent.mkdir(parents=True, exist_ok=True)
        durable.write(file, hashlib.sha256(content).digest() + content)

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.path / hashlib.sha256(self.run.encode()).hexdigest()[:16]

    def _file(self, client: str) -> Path:
        return self.folder / f"{quote(client, safe='')}.safetensors"


def start_over(folder: Path) -> tuple[str, tuple[str, ...]]:
    """Give up what the clients of a site's ``folder`` have kept for themselves in their run, and return its name and
    theirs. Raises :class:`ConfigError`, also while the site's program runs."""
    if not (folder / PLAN).is_file():
        raise ConfigError.at("STATE", f"no {PLAN} in {str(folder)!r}, so its site is in no run: name another folder")
    with only_program(folder):
        try:
            plan = Plan.decode((folder / PLAN).read_bytes())
        except NotAPlan as error:
            message = f"{str(folder / PLAN)!r} is damaged ({error}): start the site's program, which gets it again"
            raise ConfigError.at("STATE", message) from None
        for client in plan.clients or ():
            Disk(folder, plan.run).start_over(client)
    return plan.run, plan.clients or ()
