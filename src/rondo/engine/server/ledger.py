"""The bytes that would cross the network, counted by tensor version.

An algorithm says what a client must know (``broadcast``). The ledger knows which tensor versions the client has, and
counts the rest. A version is a digest of a tensor's content, so an unchanged tensor costs nothing, and a client that
missed rounds is brought up to date. The version of a base change is its number of chunks: a client is sent the chunks
it lacks, or the sum where that is smaller. Only payload bytes count: elements times element size.

A client that comes for the first time has the run's start, which it makes itself (:mod:`rondo.engine.wire.parcel`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rondo.algorithm import Client, Shared, Upload
from rondo.engine.wire.parcel import BASE, Parcel, StartVersions, held_versions
from rondo.params import num_bytes

_STATES = 64
"""Client states remembered for sharing. The clients of a round are in few states, and older states do not return."""
_CHUNKS = "[0-9]{1,18}"
"""A number of chunks."""


@dataclass
class Ledger:
    """The tensor versions that each client holds. Clients with equal versions share one mapping, so a hundred thousand
    clients cost little more than their distinct states."""

    held: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Versions by client id and tensor name."""
    counted: dict[str, int] = field(default_factory=dict)
    """The last attempt that counted, by id of clients that keep their own tensors."""
    starts: Mapping[int | None, StartVersions] = field(default_factory=dict)
    """The start of clients by their rank. A client without one makes nothing itself."""
    _known: dict[frozenset[tuple[str, str]], Mapping[str, str]] = field(default_factory=dict, repr=False)

    def send(self, client: str, shared: Shared, rank: int | None = None) -> tuple[int, int]:
        """Count the tensors of ``shared`` that ``client``, whose rank is ``rank``, lacks, and note that it has them
        now.

        Returns the bytes down, and how many of them are first contact: tensors with a name that the client never had.
        A base change is first contact for a new client only. Chunks that later rounds add belong to those rounds.
        """
        returning, known = client in self.held, self.held.get(client, {})
        parcel = self.parcel(client, shared, rank)
        first = sum(t.numel() * t.element_size() for name, t in parcel.params.items() if name not in known)
        first += 0 if returning else parcel.growth_bytes
        held = {**known, **parcel.versions, **{BASE + path: str(g.count) for path, g in parcel.base.items()}}
        if len(self._known) > _STATES:  # states of rounds long past; a client that holds one keeps it
            self._known.clear()
        self.held[client] = self._known.setdefault(frozenset(held.items()), held)
        return parcel.num_bytes, first

    def parcel(self, client: str, shared: Shared, rank: int | None = None) -> Parcel:
        """The part of ``shared`` that ``client``, whose rank is ``rank``, lacks, by what it was sent before, or makes
        itself."""
        start = StartVersions() if client in self.held else self.starts.get(rank, StartVersions())
        known = self.held.get(client, start.held)
        versions = held_versions(shared.params, {})
        lacking = {name: t for name, t in shared.params.items() if known.get(name) != versions[name]}
        counts = {path: int(known.get(BASE + path, 0)) for path in shared.base}
        # A client may be ahead of a server that went back to an older checkpoint: it starts anew.
        base = {p: change.growth(counts[p] if counts[p] <= change.count else 0) for p, change in shared.base.items()}
        made = {path: start.sums[path] for path, growth in base.items() if path in start.sums and growth.start > 0}
        return Parcel(versions, lacking, base, made)

    def believe(self, client: str, held: Mapping[str, str], rank: int | None = None) -> None:
        """Note that ``client``, whose rank is ``rank``, holds other versions than it was sent, or was to make itself,
        as it says itself. Other tensors are left out: a client could name any number of them."""
        known = self.held.get(client, self.starts.get(rank, StartVersions()).held)
        held = {n: v for n, v in held.items() if n in known}
        chunks = {n: v for n, v in held.items() if n.startswith(BASE) and re.fullmatch(_CHUNKS, v)}
        self.held[client] = {n: v for n, v in held.items() if not n.startswith(BASE)} | chunks

    def counted_of(self, client: Client) -> int | None:
        """The last attempt of ``client`` that counted; None if there is none, or if it keeps no tensors of its own."""
        return self.counted.get(client.id)

    def receive(self, upload: Upload) -> int:
        """Bytes of an upload. The client still has its tensors, but the server's next versions will be different."""
        return num_bytes(upload.params)

    def to_json(self) -> bytes:
        """All versions, as JSON. A version or mapping that several clients hold is written once. Clients and names keep
        their order, so equal ledgers give equal bytes."""
        entries: dict[str, int] = {}
        records: dict[tuple[int, ...], int] = {}

        def record_of(held: Mapping[str, str]) -> int:
            record = tuple(entries.setdefault(f"{digest} {name}", len(entries)) for name, digest in held.items())
            return records.setdefault(record, len(records))

        content: dict[str, Any] = {"clients": {client: record_of(held) for client, held in self.held.items()}}
        if self.starts:
            content["starts"] = [[rank, record_of(start.held), start.sums] for rank, start in self.starts.items()]
        if self.counted:
            content["counted"] = self.counted
        return json.dumps({"entries": list(entries), "records": list(records), **content}).encode()

    @staticmethod
    def from_json(text: bytes) -> Ledger:
        """The ledger that :meth:`to_json` wrote. Raises ValueError for any other bytes."""
        try:
            content = json.loads(text)
            entries = [entry.partition(" ") for entry in content["entries"]]
            records = [{entries[i][2]: entries[i][0] for i in record} for record in content["records"]]
            counted = {client: int(attempt) for client, attempt in content.get("counted", {}).items()}
            starts = {rank: StartVersions(records[i], dict(sums)) for rank, i, sums in content.get("starts", [])}
            ledger = Ledger({client: records[i] for client, i in content["clients"].items()}, counted, starts)
        except (KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a ledger: {type(error).__name__}: {error}") from None
        for name, count in ((n, v) for record in records for n, v in record.items() if n.startswith(BASE)):
            if not re.fullmatch(_CHUNKS, count):
                raise ValueError(f"not a ledger: {name} has {count[:20]!r} chunks")
        ledger._known = {frozenset(r.items()): r for r in records}
        return ledger
