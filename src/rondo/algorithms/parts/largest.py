"""The largest numbers of a tensor, as values and places."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rondo.messages import UnreadableUpload


def largest(values: Tensor, keep: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The ``ceil(keep n)`` numbers of largest magnitude among ``values`` (n,), in ``dtype``, and their places, in
    ascending order. Of equal magnitudes the first counts. Places are int16 where they fit, else int32."""
    count = math.ceil(keep * len(values))
    places = values.abs().sort(descending=True, stable=True).indices[:count].sort().values
    kind = torch.int16 if len(values) <= 2**15 else torch.int32
    return values[places].to(dtype), places.to(kind)


def spread_out(name: str, values: Tensor, places: Tensor, count: int) -> Tensor:
    """``count`` numbers in float64: ``values`` at their ``places``, and zeros. Raises :class:`UnreadableUpload` unless
    the places are in ascending order, without repetition, and within ``count``; ``name`` names the tensor there."""
    wide = places.long()
    if len(wide) and (wide[0] < 0 or wide[-1] >= count or (wide.diff() <= 0).any()):
        raise UnreadableUpload("bad_places", f"{name}: places must ascend and lie between 0 and {count - 1}")
    return torch.zeros(count, dtype=torch.float64).index_copy(0, wide, values.double())
