"""The bytes that would cross the network, counted by tensor version.

An algorithm says what a client must know (``broadcast``). The ledger knows which tensor versions the client has, and
counts the rest. A version is a digest of a tensor's content, so an unchanged tensor costs nothing, and a client that
missed rounds is brought up to date. The version of a base change is its number of chunks: a client is sent the chunks
it lacks, or the sum where that is smaller. Only payload bytes count: elements times element size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rondo.algorithm import Client, Shared, Upload
from rondo.engine.wire.parcel import Parcel
from rondo.engine.wire.versions import version
from rondo.params import num_bytes

_STATES = 64
"""Client states remembered for sharing. The clients of a round are in few states, and older states do not return."""
_BASE = "base:"
"""Precedes the module's path in the name of a base change."""
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
    _known: dict[frozenset[tuple[str, str]], Mapping[str, str]] = field(default_factory=dict, repr=False)

    def send(self, client: str, shared: Shared) -> tuple[int, int]:
        """Count the tensors of ``shared`` that ``client`` lacks, and note that it has them now.

        Returns the bytes down, and how many of them are first contact: tensors with a name that the client never had.
        A base change is first contact for a new client only. Chunks that later rounds add belong to those rounds.
        """
        returning, known = client in self.held, self.held.get(client, {})
        parcel = self.parcel(client, shared)
        first = sum(t.numel() * t.element_size() for name, t in parcel.params.items() if name not in known)
        first += 0 if returning else parcel.growth_bytes
        held = {**known, **parcel.versions, **{_BASE + path: str(g.count) for path, g in parcel.base.items()}}
        if len(self._known) > _STATES:  # states of rounds long past; a client that holds one keeps it
            self._known.clear()
        self.held[client] = self._known.setdefault(frozenset(held.items()), held)
        return parcel.num_bytes, first

    def parcel(self, client: str, shared: Shared) -> Parcel:
        """The part of ``shared`` that ``client`` lacks, by what it was sent before."""
        known = self.held.get(client, {})
        versions = {name: version(tensor) for name, tensor in shared.params.items()}
        lacking = {name: t for name, t in shared.params.items() if known.get(name) != versions[name]}
        counts = {path: int(known.get(_BASE + path, 0)) for path in shared.base}
        # A client may be ahead of a server that went back to an older checkpoint: it starts anew.
        base = {p: change.growth(counts[p] if counts[p] <= change.count else 0) for p, change in shared.base.items()}
        return Parcel(versions, lacking, base)

    def believe(self, client: str, held: Mapping[str, str]) -> None:
        """Note that ``client`` holds other versions than it was sent, as it says itself. Tensors that it was never sent
        are left out: a client could name any number of them."""
        sent = self.held.get(client, {})
        held = {n: v for n, v in held.items() if n in sent}
        chunks = {n: v for n, v in held.items() if n.startswith(_BASE) and re.fullmatch(_CHUNKS, v)}
        self.held[client] = {n: v for n, v in held.items() if not n.startswith(_BASE)} | chunks

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
        clients = {}
        for client, held in self.held.items():
            record = tuple(entries.setdefault(f"{digest} {name}", len(entries)) for name, digest in held.items())
            clients[client] = records.setdefault(record, len(records))
        counted = {"counted": self.counted} if self.counted else {}
        return json.dumps({"entries": list(entries), "records": list(records), "clients": clients, **counted}).encode()

    @staticmethod
    def from_json(text: bytes) -> Ledger:
        """The ledger that :meth:`to_json` wrote. Raises ValueError for any other bytes."""
        try:
            content = json.loads(text)
            entries = [entry.partition(" ") for entry in content["entries"]]
            records = [{entries[i][2]: entries[i][0] for i in record} for record in content["records"]]
            counted = {client: int(attempt) for client, attempt in content.get("counted", {}).items()}
            ledger = Ledger({client: records[i] for client, i in content["clients"].items()}, counted)
        except (KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a ledger: {type(error).__name__}: {error}") from None
        for name, count in ((n, v) for record in records for n, v in record.items() if n.startswith(_BASE)):
            if not re.fullmatch(_CHUNKS, count):
                raise ValueError(f"not a ledger: {name} has {count[:20]!r} chunks")
        ledger._known = {frozenset(r.items()): r for r in records}
        return ledger
