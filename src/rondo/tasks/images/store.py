"""A store for tens of thousands of pictures, one byte per channel and pixel."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable
from dataclasses import dataclass

from rondo.tasks.images.reading import Pixels


@dataclass(frozen=True, eq=False)
class ImageExample:
    """One picture."""

    pixels: Pixels
    """(height, width, channels) in uint8; never written to, since it may be a view of the source's own array."""
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

    def account(self) -> dict[str, int]:
        """See :class:`rondo.tasks.task.Store`."""
        return {}

    def sha256(self) -> str:
        """See :class:`rondo.tasks.task.Store`."""
        digest = hashlib.sha256()
        for pixels in self._pixels:
            digest.update(str(pixels.shape).encode())
            digest.update(pixels.tobytes())
        digest.update(self._targets.tobytes())
        return digest.hexdigest()
