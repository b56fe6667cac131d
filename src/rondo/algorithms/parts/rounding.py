"""Stochastic rounding of a tensor to 8 or 4 bits a number. The mean of what it gives is the tensor.

Numbers of a block share a scale, their largest magnitude. With L = 127 or 7 levels on each side of zero and u
uniform in [0, 1), a number x becomes ``floor(x L / scale + u)``, which lies within -L and L and has the mean
``x L / scale``.

Source: Alistarh et al., QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding, NeurIPS 2017.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from rondo.messages import UnreadableUpload

Bits = Literal[4, 8]
"""Bits of a number."""
BLOCK = 256
"""Numbers that share a scale."""


def rounded(values: Tensor, bits: Bits, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The codes of ``values`` (n,), as uint8 (ceil(n bits / 8),), and the scales of their blocks, as float32
    (ceil(n / 256),). A code is a level plus L; of two codes of 4 bits in a byte, the first has the lower bits."""
    count, levels = len(values), _levels(bits)
    blocks = torch.nn.functional.pad(values.double(), (0, -count % BLOCK)).view(-1, BLOCK)
    largest = blocks.abs().amax(1)
    scales = largest.float()
    # Never below the largest number, which would have no level.
    scales = torch.where(scales.double() < largest, scales.nextafter(torch.tensor(math.inf)), scales)
    step = (scales.double() / levels).unsqueeze(1)
    draws = torch.rand(blocks.shape, generator=generator, dtype=torch.float64)
    level = (torch.where(step > 0, blocks / step, 0.0) + draws).floor().clamp(-levels, levels)
    codes = (level + levels).to(torch.uint8).flatten()[:count]
    if bits == 4:
        pairs = torch.nn.functional.pad(codes, (0, count % 2)).view(-1, 2)
        codes = pairs[:, 0] | (pairs[:, 1] << 4)
    return codes, scales


def unrounded(name: str, codes: Tensor, scales: Tensor, count: int, bits: Bits) -> Tensor:
    """The ``count`` numbers in ``codes`` and ``scales``, in float64 (count,). Raises :class:`UnreadableUpload` for what
    :func:`rounded` does not write; ``name`` names the tensor there."""
    levels = _levels(bits)
    if not (scales.isfinite().all() and (scales >= 0).all()):
        raise UnreadableUpload("bad_scale", f"{name}: scales must be finite and not negative")
    if bits == 4:
        codes = torch.stack([codes & 15, codes >> 4], 1).flatten()
    if (codes > 2 * levels).any() or codes[count:].any():
        raise UnreadableUpload("bad_code", f"{name}: codes of {bits} bits lie between 0 and {2 * levels}")
    steps = (scales.double() / levels).repeat_interleave(BLOCK)[:count]
    return (codes[:count].double() - levels) * steps


def _levels(bits: Bits) -> int:
    return 127 if bits == 8 else 7
