"""A store for tens of thousands of pictures, one byte (or four, of floats) per channel and pixel."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rondo.tasks.images.reading import Pixels


@dataclass(frozen=True, eq=False)
class ImageExample:
    """One picture."""

    pixels: Pixels
    """(height, width, channels) in uint8 or float32; never written to, since it may be a view of the source's own
    array."""
    target: int
    """Its class."""

    @property
    def cost(self) -> int:
        """Number of pixels."""
        return int(self.pixels.shape[0] * self.pixels.shape[1])


class ImageStore:
    """All pictures of a run. It holds the arrays it is given and copies none."""

    def __init__(self) -> None:
        self._pixels: list[Pixels] = []
        self._targets = array("i")

    def add(self, examples: Iterable[ImageExample]) -> range:
        """See :class:`rondo.tasks.task.Store`."""
        first = len(self._pixels)
        for example in examples:
            self._pixels.append(example.pixels)
            self._targets.append(example.target)
        return range(first, len(self._pixels))

    def __getitem__(self, number: int) -> ImageExample:
        return ImageExample(self._pixels[number], self._targets[number])

    def cost(self, number: int) -> int:
        """See :class:`rondo.tasks.task.Store`."""
        return self[number].cost

    def account(self) -> dict[str, float]:
        """See :class:`rondo.tasks.task.Store`: of pictures of floats, their number and the range of their pixels."""
        floats = [pixels for pixels in self._pixels if pixels.dtype != np.uint8]
        if not floats:
            return {}
        low, high = min(float(p.min()) for p in floats), max(float(p.max()) for p in floats)
        of_bytes = len(self._pixels) - len(floats)
        return {"pictures_of_floats": len(floats), "pictures_of_bytes": of_bytes, "lowest": low, "highest": high}

    def sha256(self) -> str:
        """See :class:`rondo.tasks.task.Store`."""
        digest = hashlib.sha256()
        for pixels in self._pixels:
            digest.update(str(pixels.shape).encode())
            digest.update(pixels.tobytes())
        digest.update(self._targets.tobytes())
        return digest.hexdigest()
