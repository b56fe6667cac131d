"""The version of a tensor: a digest of its content, equal wherever the tensor is equal."""

from __future__ import annotations

import hashlib
import weakref

import torch
from torch import Tensor

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
