"""A broadcast as it travels: the versions of its tensors, the parcel of those that a client lacks, and the start of a
run.

A version is a digest of a tensor's content, equal wherever the tensor is equal. Neither rows nor training have touched
a run's first state, so a client computes the start itself, from the base model, the configuration and its seed. The
server sends the versions of it (docs/dev/adr/0023-the-start-is-a-seed.md)."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from rondo.algorithm import Algorithm, Client, Round, Shared
from rondo.lowrank import GrowingSum, Growth
from rondo.params import Params, num_bytes

BASE = "base:"
"""Precedes the module's path in the name of a base change."""

_versions: dict[int, tuple[weakref.ref[Tensor], str]] = {}


def version(tensor: Tensor) -> str:
    """A digest of dtype, shape and content. It is cached by identity while the tensor lives, because one tensor goes to
    many clients."""
    key = id(tensor)
    cached = _versions.get(key)
    if cached is not None and cached[0]() is tensor:
        return cached[1]
    digest = hashlib.blake2b(digest_size=16)
    _add(digest.update, tensor)
    _versions[key] = (weakref.ref(tensor, lambda _: _versions.pop(key, None)), digest.hexdigest())
    return _versions[key][1]


def held_versions(params: Params, base: Mapping[str, GrowingSum]) -> dict[str, str]:
    """The version of every tensor by name, and the number of chunks of every base change by ``base:<path>``."""
    tensors = {name: version(tensor) for name, tensor in params.items()}
    return tensors | {BASE + path: str(change.count) for path, change in base.items()}


def sum_version(change: GrowingSum) -> str:
    return "".join(map(version, change.since(0)))


def sent_digest(shared: Shared, client: Client, round: Round) -> str:
    """SHA-256 of all that a client's upload starts from: the content of the broadcast, its rank, and the round, from
    which rates and turns follow. It is equal for the clients of a round, whatever each had before."""
    digest = hashlib.sha256(repr((client.rank, round)).encode())
    parts: dict[str, tuple[Tensor, ...]] = {name: (tensor,) for name, tensor in shared.params.items()}
    parts |= {BASE + path: change.since(0) for path, change in shared.base.items()}
    for name in sorted(parts):
        for tensor in parts[name]:
            digest.update(repr(name).encode())
            _add(digest.update, tensor)
    return digest.hexdigest()


def _add(update: Callable[[Any], None], tensor: Tensor) -> None:
    content = tensor.detach().cpu().contiguous()
    update(f"{content.dtype}{tuple(content.shape)}".encode())
    update(content.reshape(-1).view(torch.uint8).numpy().data)


@dataclass(frozen=True)
class Parcel:
    """One client's part of a broadcast."""

    versions: Mapping[str, str]
    """The version of every tensor of the broadcast, by name (:mod:`rondo.engine.wire.parcel`)."""
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
        return sum(t.numel() * t.element_size() for growth in self.base.values() for t in growth.tensors)


def start_of(algorithm: Algorithm[Any], first: Any, rank: int | None, round: Round) -> Shared:
    """The start of every client of ``rank``. ``first``: the server's state before ``round``, the run's first."""
    return algorithm.broadcast(first, Client("", 0, rank), round)


@dataclass(frozen=True)
class StartVersions:
    """The versions of a start, by which the server knows it once the tensors are gone."""

    held: Mapping[str, str] = field(default_factory=dict)
    """As :func:`~rondo.engine.wire.parcel.held_versions`."""
    sums: Mapping[str, str] = field(default_factory=dict)
    """The digest of every base change, by module path."""

    @staticmethod
    def by_rank(
        algorithm: Algorithm[Any], first: Any, ranks: Iterable[int | None], round: Round
    ) -> dict[int | None, StartVersions]:
        starts = {rank: start_of(algorithm, first, rank, round) for rank in dict.fromkeys(ranks)}
        return {
            rank: StartVersions(
                held_versions(start.params, start.base),
                {path: sum_version(change) for path, change in start.base.items()},
            )
            for rank, start in starts.items()
        }
