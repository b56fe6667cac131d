"""The version of a tensor: a digest of its content, equal wherever the tensor is equal."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Mapping

import torch
from torch import Tensor

from rondo.algorithm import Round, Shared
from rondo.lowrank import GrowingSum
from rondo.params import Params

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
    content = tensor.detach().cpu().contiguous()
    digest = hashlib.blake2b(f"{content.dtype}{tuple(content.shape)}".encode(), digest_size=16)
    digest.update(content.reshape(-1).view(torch.uint8).numpy().data)
    _versions[key] = (weakref.ref(tensor, lambda _: _versions.pop(key, None)), digest.hexdigest())
    return _versions[key][1]


def held_versions(params: Params, base: Mapping[str, GrowingSum]) -> dict[str, str]:
    """The version of every tensor by name, and the number of chunks of every base change by ``base:<path>``."""
    tensors = {name: version(tensor) for name, tensor in params.items()}
    return tensors | {BASE + path: str(change.count) for path, change in base.items()}


def sum_version(change: GrowingSum) -> str:
    """A digest of a base change."""
    return "".join(map(version, change.since(0)))


def sent_digest(shared: Shared, round: Round) -> str:
    """SHA-256 of all that a round's upload starts from: every tensor and base change of its broadcast, and the round's
    place in its run, from which rates and turns follow. It is equal for the clients of a round, whatever each had
    before."""
    tensors = sorted((name, version(tensor)) for name, tensor in shared.params.items())
    base = sorted((path, sum_version(change)) for path, change in shared.base.items())
    facts = (tensors, base, round.index, round.total, round.population, round.seed)
    return hashlib.sha256(repr(facts).encode()).hexdigest()
