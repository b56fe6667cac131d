"""Gaussian noise from a secret key: a stream per attempt and sum.

The same sum of the same attempt gets the same noise, so that repeating it after a crash reveals nothing more. Another
sum of that attempt, or the same one at another deviation, gets other noise: with one stream, the difference of two sums
would be bare.
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

KEY_BYTES = 32


def noised(total: Tensor, deviation: float | Tensor, key: bytes, attempt: int) -> Tensor:
    """``total``, (n,) in float64, plus independent Gaussian noise of standard deviation ``deviation``, one for
    all numbers or one each.

    The bits are SHAKE-256 of the key, the attempt and :func:`digest_of` the sum: without the key they cannot be
    told from random ones. Box and Muller's transform makes them Gaussian in float64, up to 8.6 deviations; attacks on
    the rounding of floating-point noise (Mironov 2012) are not defended. Raises ValueError for a key of another length.
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key of noise has {KEY_BYTES} bytes, not {len(key)}")
    count = total.numel()
    stream = hashlib.shake_256(key + attempt.to_bytes(8, "little") + digest_of(total, deviation))
    words = np.frombuffer(stream.digest(16 * count), dtype="<u8").reshape(2, count) >> np.uint64(11)
    # 53 bits each; the first is in (0, 1], as the logarithm needs.
    radius = np.sqrt(-2.0 * np.log((words[0].astype(np.float64) + 1.0) * 2.0**-53))
    angle = words[1].astype(np.float64) * (2.0 * np.pi * 2.0**-53)
    return total + deviation * torch.from_numpy(radius * np.cos(angle))


def digest_of(total: Tensor, deviation: float | Tensor) -> bytes:
    """SHA-256 of a sum and of the deviation of its noise."""
    digest = hashlib.sha256()
    for numbers in (total, torch.as_tensor(deviation, dtype=torch.float64)):
        digest.update(numbers.numpy().astype("<f8", copy=False).tobytes())
    return digest.digest()
