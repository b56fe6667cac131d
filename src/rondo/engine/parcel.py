"""A broadcast as it travels: the versions that a client must have, and the tensors that it lacks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from rondo.engine import serialization
from rondo.lowrank import Growth
from rondo.params import Params, num_bytes

_DIGEST = 32


@dataclass(frozen=True)
class Parcel:
    """One client's part of a broadcast."""

    versions: Mapping[str, str]
    """The version of every tensor of the broadcast, by name (:mod:`rondo.engine.versions`)."""
    params: Params
    """The tensors among them that the client lacks."""
    base: Mapping[str, Growth]
    """The growth of every base change, by module path."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors inside: what the ledger counts."""
        return num_bytes(self.params) + self.growth_bytes

    @property
    def growth_bytes(self) -> int:
        """Bytes of the base changes inside."""
        return sum(t.numel() * t.element_size() for growth in self.base.values() for t in growth.tensors)

    def encode(self) -> bytes:
        """A digest, then a safetensors file."""
        content = serialization.pack(self)
        return hashlib.sha256(content).digest() + content

    @staticmethod
    def decode(data: bytes) -> Parcel:
        """The parcel from :meth:`encode`. Raises ValueError for any other bytes."""
        content = data[_DIGEST:]
        if hashlib.sha256(content).digest() != data[:_DIGEST]:
            raise ValueError(f"{len(data)} bytes that do not have the digest they begin with")
        parcel = serialization.unpack(content, _EMPTY)
        if not isinstance(parcel, Parcel):
            raise ValueError(f"not a parcel, but a {type(parcel).__name__}")
        return parcel


_EMPTY = Parcel({}, {}, {"": Growth(0, 0, (), ())})
