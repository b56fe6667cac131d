"""Batches of pictures: normalised by fixed constants, and augmented by draws of each client's own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rondo.config.inputs import Normalization
from rondo.tasks.images.reading import Pixels

_MEAN_AND_SPREAD: dict[Normalization, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "unit": ((0.0,), (1.0,)),
    "half": ((0.5,), (0.5,)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""Mean and standard deviation per channel, of pixels from 0 to 1. They are published constants: computed from a run's
rows they would leak client data."""

_BORDER = 4
"""Pixels of black that a picture gets on each side before it is cropped to its old size."""


def channels(name: Normalization) -> int | None:
    """The number of channels that the constants of ``name`` are for; None if for any number."""
    return None if name in ("unit", "half") else len(_MEAN_AND_SPREAD[name][0])


def normalized(pictures: Sequence[Pixels], name: Normalization) -> Tensor:
    """Pictures of one size as float32 (rows, channels, height, width): (pixel / 255 - mean) / deviation of bytes, and
    (pixel - mean) / deviation of floats."""
    mean, spread = _constants(name)
    whole = all(picture.dtype == np.uint8 for picture in pictures)
    if not whole:
        pictures = [p / np.float32(255) if p.dtype == np.uint8 else p for p in pictures]
    pixels = _channel_by_channel(torch.from_numpy(np.stack(pictures))).float()
    return (pixels.div_(255) if whole else pixels).sub_(mean).div_(spread)


def cropped_and_flipped(
    pixels: Tensor, rows_per_client: Sequence[int], generators: Sequence[torch.Generator], name: Normalization
) -> Tensor:
    """Each picture shifted by up to 4 pixels in height and width, the gap filled with black, and one in two mirrored
    from left to right. A client's draws come from its own generator, so its pictures do not depend on the others.

    ``pixels``: (rows, channels, height, width), normalised by ``name``, rows ordered by client.
    """
    rows, _, height, width = pixels.shape
    draws = [_draws(count, generator) for count, generator in zip(rows_per_client, generators, strict=True)]
    top, left, mirrored = (torch.cat(parts) for parts in zip(*draws, strict=True))
    mean, spread = _constants(name)
    padded = (-mean / spread).expand(rows, pixels.shape[1], height + 2 * _BORDER, width + 2 * _BORDER).clone()
    padded[:, :, _BORDER:-_BORDER, _BORDER:-_BORDER] = pixels
    down, right = top[:, None] + torch.arange(height), left[:, None] + torch.arange(width)
    right = torch.where(mirrored[:, None], right.flip(1), right)
    # Indices apart from each other put their axes first: (rows, height, width, channels).
    picked = padded[torch.arange(rows)[:, None, None], :, down[:, :, None], right[:, None, :]]
    return _channel_by_channel(picked)


def _channel_by_channel(pictures: Tensor) -> Tensor:
    """(rows, height, width, channels) as (rows, channels, height, width), in memory too. ``contiguous`` would leave a
    single channel as it is, and convolutions take pictures by their strides."""
    return pictures.permute(0, 3, 1, 2).clone(memory_format=torch.contiguous_format)


def _draws(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    shifts = torch.randint(2 * _BORDER + 1, (count, 2), generator=generator)
    return shifts[:, 0], shifts[:, 1], torch.rand(count, generator=generator) < 0.5


def _constants(name: Normalization) -> tuple[Tensor, Tensor]:
    """Mean and deviation, (channels or 1, 1, 1) each."""
    mean, spread = _MEAN_AND_SPREAD[name]
    return torch.tensor(mean)[:, None, None], torch.tensor(spread)[:, None, None]
