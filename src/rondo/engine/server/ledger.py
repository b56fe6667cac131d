"""The bytes that would cross the network, counted by tensor version.

An algorithm says what a client must know (``broadcast``). The ledger knows which tensor versions the client has, and
counts the rest. A version is a digest of a tensor's content, so an unchanged tensor costs nothing, and a client that
missed rounds is brought up to date. The version of a base change is its number of chunks: a client is sent the chunks
it lacks, or the sum where that is smaller. Only payload bytes count: elements times element size.
"""

from __future__ import annotations

import hashlib
import json
import re
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rondo.algorithm import Shared, Upload
from rondo.params import num_bytes

_STATES = 64
"""Client states remembered for sharing. The clients of a round are in few states, and older states do not return."""
_BASE = "base:"
"""Precedes the module's path in the name of a base change."""


@dataclass
class Ledger:
    """The tensor versions that each client holds. Clients with equal versions share one mapping, so a hundred thousand
    clients cost little more than their distinct states."""

    held: dict[str, Mapping[str, str]] = field(default_factory=dict)
    """Versions by client id and tensor name."""
    _known: dict[frozenset[tuple[str, str]], Mapping[str, str]] = field(default_factory=dict, repr=False)

    def send(self, client: str, shared: Shared) -> tuple[int, int]:
        """Count the tensors of ``shared`` that ``client`` lacks, and note that it has them now.

        Returns the bytes down, and how many of them are first contact: tensors with a name that the client never had.
        A base change is first contact for a new client only. Chunks that later rounds add belong to those rounds.
        """
        returning = client in self.held
        held = dict(self.held.get(client, {}))
        down = first = 0
        for name, tensor in shared.params.items():
            current = version(tensor)
            previous = held.get(name)
            if previous != current:
                size = tensor.numel() * tensor.element_size()
                down += size
                first += size if previous is None else 0
                held[name] = current
        for path, change in shared.base.items():
            lacking = change.since(int(held.get(_BASE + path, 0)))
            size = sum(tensor.numel() * tensor.element_size() for tensor in lacking)
            down += size
            first += 0 if returning else size
            held[_BASE + path] = str(change.count)
        if len(self._known) > _STATES:  # states of rounds long past; a client that holds one keeps it
            self._known.clear()
        self.held[client] = self._known.setdefault(frozenset(held.items()), held)
        return down, first

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
        return json.dumps({"entries": list(entries), "records": list(records), "clients": clients}).encode()

    @staticmethod
    def from_json(text: bytes) -> Ledger:
        """The ledger that :meth:`to_json` wrote. Raises ValueError for any other bytes."""
        try:
            content = json.loads(text)
            entries = [entry.partition(" ") for entry in content["entries"]]
            records = [{entries[i][2]: entries[i][0] for i in record} for record in content["records"]]
            ledger = Ledger({client: records[i] for client, i in content["clients"].items()})
        except (KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a ledger: {type(error).__name__}: {error}") from None
        for name, count in ((n, v) for record in records for n, v in record.items() if n.startswith(_BASE)):
            if not re.fullmatch("[0-9]{1,18}", count):
                raise ValueError(f"not a ledger: {name} has {count[:20]!r} chunks")
        ledger._known = {frozenset(r.items()): r for r in records}
        return ledger


_versions: dict[int, tuple[weakref.ref[Tensor], str]] = {}


def version(tensor: Tensor) -> str:
    """A digest of dtype, shape and content. It is cached by identity while the tensor lives, because one tensor goes to
    many clients."""
    key = id(tensor)
    cached = _versions.get(key)
    if cached is not None and cached[0]() is tensor:
        return cached[1]
    content = tensor.detach().cpu().contiguous()
    digest = hashlib.blake2b(f"{content.dtype}{tuple(content.shape)}".encode(), digest_size=16)
    digest.update(content.reshape(-1).view(torch.uint8).numpy().data)
    _versions[key] = (weakref.ref(tensor, lambda _: _versions.pop(key, None)), digest.hexdigest())
    return _versions[key][1]
