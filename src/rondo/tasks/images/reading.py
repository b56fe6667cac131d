"""Pictures as rows hold them, opened as arrays (height, width, channels), channels 1 or 3: bytes in uint8, or real
numbers in float32, which are the network's input already."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rondo.process import no_warnings

Pixels: TypeAlias = NDArray[np.uint8 | np.float32]
"""A picture, (height, width, channels)."""

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
"""The formats that are decoded. Pillow knows dozens more, and each is code that reads a stranger's file."""
_MOST = 2**26
"""Most pixels of a picture that is decoded. A file of a few kilobytes can claim billions."""
_ORIENTATION = 0x0112
"""The tag by which a camera says how it was held."""


@dataclass(frozen=True)
class Unreadable:
    """A value that is no usable picture."""

    reason: str
    """The fault, and its remedy where there is one."""


def opened(
    value: Any, *, side: int | None = None, shape: Sequence[int] | None = None, colour: bool = False
) -> Pixels | Unreadable:
    """The pixels of a picture.

    ``value``: array (height, width), (height, width, channels) or (channels, height, width) of uint8 or of floats,
    nested lists of such numbers, encoded bytes, ``{"bytes": ..., "path": ...}`` as Hugging Face data sets store them,
    the path of a file, or a Pillow image.
    ``side``: resize to so many pixels in height and width.
    ``shape``: height, width and channels of a value that is a single list of so many numbers.
    ``colour``: turn greyscale into three equal channels.
    """
    try:
        pixels = _pixels(value, shape)
        if side is not None and pixels.shape[:2] != (side, side):
            pixels = _resized(pixels, side)
    except ValueError as error:
        return Unreadable(str(error))
    return np.repeat(pixels, 3, axis=2) if colour and pixels.shape[2] == 1 else pixels


def _pixels(value: Any, shape: Sequence[int] | None) -> Pixels:
    """Raises ValueError with the fault."""
    from PIL import Image

    if isinstance(value, np.ndarray | list):
        return _array(value, shape)
    if isinstance(value, dict) and value.keys() <= {"bytes", "path"}:
        if not value.get("bytes"):
            raise ValueError("the row has the path of a picture and not the picture: store its bytes")
        value = value["bytes"]
    if isinstance(value, Image.Image):
        return _decoded(value)
    if not isinstance(value, bytes | Path):
        raise ValueError(f"expected a picture, got {value!r:.60}")
    try:
        with no_warnings():  # of damaged metadata, which is not read
            source = io.BytesIO(value) if isinstance(value, bytes) else value
            with Image.open(source, formats=_FORMATS) as image:
                return _decoded(image)
    except ValueError:
        raise
    except Exception as error:  # a decoder may raise anything on a damaged file
        reason = str(error).strip().split("\n")[0]
        if "cannot identify image file" in reason:
            reason = f"it is not in one of the formats {', '.join(_FORMATS)}"
        if isinstance(value, Path):
            reason = f"{Path(value.parent.name, value.name)}: {reason}"
        raise ValueError(f"the picture cannot be decoded: {reason}") from None


def _decoded(image: Any) -> Pixels:
    """The pixels of a Pillow image. Raises ValueError for a kind of picture that 8 bits per channel do not hold."""
    from PIL import ImageOps

    if image.width * image.height > _MOST:
        raise ValueError(f"the picture has {image.width} x {image.height} pixels; scale it down")
    if image.getexif().get(_ORIENTATION, 1) != 1:
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":
        raise ValueError(f"the picture has more than 8 bits per channel (mode {image.mode}): save it with 8")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        if image.getextrema()[3][0] < 255:
            raise ValueError("the picture is transparent in places: save it without transparency")
        image = image.convert("RGB")
    if image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    pixels: Pixels = np.asarray(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _array(value: Any, shape: Sequence[int] | None) -> Pixels:
    pixels = value if isinstance(value, np.ndarray) else _of_lists(value)
    if pixels.ndim == 1:
        pixels = _laid_out(pixels, shape)
    if pixels.dtype != np.uint8 and pixels.dtype.kind != "f":
        raise ValueError(f"the pixels are {pixels.dtype}: give uint8, from 0 to 255, or floats")
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim == 3 and pixels.shape[2] not in _CHANNELS and pixels.shape[0] in _CHANNELS:
        pixels = np.moveaxis(pixels, 0, 2)  # as torch has them
    if pixels.ndim != 3 or pixels.shape[2] not in _CHANNELS or 0 in pixels.shape:
        sizes = " x ".join(map(str, pixels.shape))
        raise ValueError(f"the picture is {sizes}: give height x width, with 1 or 3 channels before or after")
    return pixels if pixels.dtype == np.uint8 else _floats(pixels)


_CHANNELS = (1, 3)


def _laid_out(numbers: NDArray[Any], shape: Sequence[int] | None) -> NDArray[Any]:
    if shape is None or numbers.size != np.prod(shape):
        message = f"the picture is a list of {numbers.size} numbers: say its height, width and channels with "
        raise ValueError(f"{message}task.image_shape")
    return numbers.reshape(shape)


def _floats(pixels: NDArray[Any]) -> Pixels:
    if not np.isfinite(pixels).all():
        raise ValueError("the picture has pixels that are not finite: mend it")
    low, high = pixels.min(), pixels.max()
    if low >= 0 and high > 1 and high <= 255 and (pixels == np.rint(pixels)).all():
        message = f"the pixels are {pixels.dtype}, and whole numbers up to {high:.0f}: "
        raise ValueError(message + "give bytes, pixels.astype('uint8')")
    return pixels.astype(np.float32, copy=False)


def _of_lists(value: list[Any]) -> NDArray[Any]:
    try:
        pixels = np.asarray(value)
    except ValueError:
        raise ValueError("the lists of pixels differ in length") from None
    whole = pixels.dtype.kind in "iu" and pixels.size > 0 and pixels.min() >= 0 and pixels.max() <= 255
    return pixels.astype(np.uint8) if whole else pixels


def _resized(pixels: Pixels, side: int) -> Pixels:
    """The picture with ``side`` pixels in height and width, bilinear over the pixels that a new one covers."""
    from PIL import Image

    def one(plane: NDArray[Any]) -> NDArray[Any]:
        return np.asarray(Image.fromarray(plane).resize((side, side), Image.Resampling.BILINEAR))

    if pixels.dtype == np.uint8 and pixels.shape[2] == 3:
        return one(pixels)
    return np.stack([one(np.ascontiguousarray(pixels[:, :, c])) for c in range(pixels.shape[2])], axis=2)
