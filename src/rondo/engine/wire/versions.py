"""The version of a tensor: a digest of its content, equal wherever the tensor is equal."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rondo.algorithm import Client, Round, Shared
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
    digest = hashlib.blake2b(digest_size=16)
    _add(digest.update, tensor)
    _versions[key] = (weakref.ref(tensor, lambda _: _versions.pop(key, None)), digest.hexdigest())
    return _versions[key][1]


def held_versions(params: Params, base: Mapping[str, GrowingSum]) -> dict[str, str]:
    """The version of every tensor by name, and the number of chunks of every base change by ``base:<path>``."""
    tensors = {name: version(tensor) for name, tensor in params.items()}
    return tensors | {BASE + path: str(change.count) for path, change in base.items()}


def sum_version(change: GrowingSum) -> str:
    """A digest of a base change."""
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
