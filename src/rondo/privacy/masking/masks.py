"""Masks of a vector that cancel in a sum, and the keys that they are made from.

Bonawitz et al., "Practical secure aggregation for privacy-preserving machine learning", CCS 2017. Every pair of sites
shares a seed by X25519 and HKDF; one adds its stream and the other subtracts it. A mask of the site's own keeps a
vector that arrives late hidden for good. Every seed and every key serves once, so nonces are zero.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from rondo.privacy.masking.integers import Ring

KEY = 32
"""Bytes of a key and of a seed."""
Masked = NDArray[numpy.unsignedinteger[Any]]
"""Numbers of a ring of 32 or 64 bits."""
_TYPES: dict[Ring, numpy.dtype[Any]] = {32: numpy.dtype("<u4"), 64: numpy.dtype("<u8")}
_SIGNED: dict[Ring, numpy.dtype[Any]] = {32: numpy.dtype("<i4"), 64: numpy.dtype("<i8")}


def to_ring(numbers: NDArray[numpy.int64], ring: Ring) -> Masked:
    """``numbers`` modulo 2^ring."""
    return numbers.astype(_TYPES[ring])


def from_ring(numbers: Masked, ring: Ring) -> NDArray[numpy.int64]:
    """The integers from -2^(ring - 1) on that are ``numbers`` modulo 2^ring."""
    return numbers.view(_SIGNED[ring]).astype(numpy.int64)


def digest(*parts: object) -> bytes:
    """SHA-256 of ``parts``, which JSON can write, in one way for equal parts."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).digest()


def public_key(private: bytes) -> bytes:
    """The X25519 public key of the 32 bytes ``private``."""
    key: bytes = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return key


def agreed(private: bytes, public: bytes, purpose: str, context: bytes) -> bytes:
    """32 bytes that only the owners of two X25519 keys know, other ones for each ``purpose`` and ``context``.

    ``private``: one's own private key.
    ``public``: the other's public key. Raises ValueError for one of low order, with which all secrets are zero.
    """
    secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    key: bytes = HKDF(hashes.SHA256(), KEY, salt=context, info=f"rondo {purpose}".encode()).derive(secret)
    return key


def stream(seed: bytes, count: int, ring: Ring) -> Masked:
    """``count`` numbers of the ring from ChaCha20 under the key ``seed``, little endian."""
    encryptor = Cipher(ChaCha20(seed, bytes(16)), None).encryptor()
    return numpy.frombuffer(encryptor.update(bytes(count * ring // 8)), _TYPES[ring])


def mask(own: bytes, before: Sequence[bytes], after: Sequence[bytes], count: int, ring: Ring) -> Masked:
    """The mask of one site's ``count`` numbers: the streams of its own seed and of the seeds that it shares with sites
    ``after`` it, less those that it shares with sites ``before`` it. Summed over all sites, only own masks stay."""
    total = stream(own, count, ring).copy()
    for seed in after:
        total += stream(seed, count, ring)
    for seed in before:
        total -= stream(seed, count, ring)
    return total


def opened(total: Masked, seeds: Iterable[bytes], ring: Ring) -> NDArray[numpy.int64]:
    """The sum of the sites' numbers, from that of their masked vectors, without the own masks of ``seeds``."""
    total = total.copy()
    for seed in seeds:
        total -= stream(seed, len(total), ring)
    return from_ring(total, ring)


def seal(key: bytes, share: bytes, context: bytes) -> bytes:
    """``share`` encrypted by ChaCha20-Poly1305 and bound to ``context``. No key may seal twice."""
    sealed: bytes = ChaCha20Poly1305(key).encrypt(bytes(12), share, context)
    return sealed


def unseal(key: bytes, sealed: bytes, context: bytes) -> bytes:
    """The share in ``sealed``. Raises ValueError if it was sealed by another key or for another context."""
    try:
        share: bytes = ChaCha20Poly1305(key).decrypt(bytes(12), sealed, context)
    except InvalidTag:
        raise ValueError("the share was not sealed for this site and set") from None
    return share
