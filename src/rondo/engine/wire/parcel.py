"""A broadcast as it travels in a request: the versions that a client must have, and the tensors that it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rondo.lowrank import Growth
from rondo.params import Params, num_bytes


@dataclass(frozen=True)
class Parcel:
    """One client's part of a broadcast."""

    versions: Mapping[str, str]
    """The version of every tensor of the broadcast, by name (:mod:`rondo.engine.wire.versions`)."""
    params: Params
    """The tensors among them that the client lacks."""
    base: Mapping[str, Growth]
    """The growth of every base change, by module path."""
    made: Mapping[str, str] = field(default_factory=dict)
    """Digests of the base changes that the client is to have made itself before it adds ``base``, by module path."""
    sums: Mapping[str, str] = field(default_factory=dict)
    """Digests of the base changes with ``base`` added, where all clients must have the same bits, by module path."""

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors inside: what the ledger counts."""
        return num_bytes(self.params) + self.growth_bytes

    @property
    def growth_bytes(self) -> int:
        """Bytes of the base changes inside."""
        return sum(t.numel() * t.element_size() for growth in self.base.values() for t in growth.tensors)
