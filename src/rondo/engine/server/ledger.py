"""What would cross the network, counted by tensor version.

An algorithm says what a client must know (``broadcast``); the ledger knows which versions of which tensors the client
has and counts the rest. A tensor's version is a digest of its content, so a tensor that did not change costs nothing,
and a client that missed rounds is brought up to date. Payload bytes are counted: elements times element size.
"""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rondo.algorithm import Shared, Upload
from rondo.params import num_bytes

_STATES = 64
"""How many states of clients are remembered to be shared. Clients of a round are in few; older ones come no more."""
_CHUNK = "base:"


@dataclass
class Ledger:
    """Versions that each client holds, by client id and tensor name. Clients that hold the same share one mapping, so
    that a hundred thousand of them cost little more than the distinct states that they are in."""

    held: dict[str, Mapping[str, str]] = field(default_factory=dict)
    _known: dict[frozenset[tuple[str, str]], Mapping[str, str]] = field(default_factory=dict, repr=False)

    def send(self, client: str, shared: Shared) -> tuple[int, int]:
        """Count what ``client`` lacks of ``shared`` and note that it has it now: (bytes down, of these the bytes of
        names it never had). Chunks of the base are tensors like any other, each sent once; one that a later round
        appends is news of that round, not of a first contact."""
        known = client in self.held
        held = dict(self.held.get(client, {}))
        down = first = 0
        for name, tensor in _named(shared).items():
            now = version(tensor)
            before = held.get(name)
            if before != now:
                size = tensor.numel() * tensor.element_size()
                down += size
                first += size if before is None and not (known and name.startswith(_CHUNK)) else 0
                held[name] = now
        if len(self._known) > _STATES:  # those of rounds long past; who holds them keeps them
            self._known.clear()
        self.held[client] = self._known.setdefault(frozenset(held.items()), held)
        return down, first

    def receive(self, upload: Upload) -> int:
        """Bytes of an upload. What the client sent it still has, but the server's next version is another."""
        return num_bytes(upload.params)

    def to_json(self) -> bytes:
        """All versions, each that several clients hold written once. Clients and names keep their order, so equal
        ledgers give equal bytes."""
        entries: dict[str, int] = {}
        records: dict[tuple[int, ...], int] = {}
        clients = {}
        for client, held in self.held.items():
            record = tuple(entries.setdefault(f"{digest} {name}", len(entries)) for name, digest in held.items())
            clients[client] = records.setdefault(record, len(records))
        return json.dumps({"entries": list(entries), "records": list(records), "clients": clients}).encode()

    @staticmethod
    def from_json(text: bytes) -> Ledger:
        """What :meth:`to_json` gave. Raises ValueError where it is something else."""
        try:
            content = json.loads(text)
            entries = [entry.partition(" ") for entry in content["entries"]]
            records = [{entries[i][2]: entries[i][0] for i in record} for record in content["records"]]
            ledger = Ledger({client: records[i] for client, i in content["clients"].items()})
        except (KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a ledger: {type(error).__name__}: {error}") from None
        ledger._known = {frozenset(r.items()): r for r in records}
        return ledger


def _named(shared: Shared) -> Mapping[str, Tensor]:
    chunks = {
        f"{_CHUNK}{path}:{i}:{part}": tensor
        for path, parts in shared.base.items()
        for i, chunk in enumerate(parts)
        for part, tensor in (("up", chunk.up), ("down", chunk.down))
    }
    return {**shared.params, **chunks}


_versions: dict[int, tuple[weakref.ref[Tensor], str]] = {}


def version(tensor: Tensor) -> str:
    """A digest of dtype, shape and content. Remembered by identity as long as the tensor lives, as one tensor is sent
    to many clients."""
    key = id(tensor)
    known = _versions.get(key)
    if known is not None and known[0]() is tensor:
        return known[1]
    content = tensor.detach().cpu().contiguous()
    digest = hashlib.blake2b(f"{content.dtype}{tuple(content.shape)}".encode(), digest_size=16)
    digest.update(content.reshape(-1).view(torch.uint8).numpy().data)
    _versions[key] = (weakref.ref(tensor, lambda _: _versions.pop(key, None)), digest.hexdigest())
    return _versions[key][1]
