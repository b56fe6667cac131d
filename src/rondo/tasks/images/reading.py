"""Pictures as rows hold them, opened as arrays of bytes: (height, width, channels) in uint8, channels 1 or 3."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rondo.process import no_warnings

Pixels: TypeAlias = NDArray[np.uint8]
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


def opened(value: Any, *, side: int | None = None, colour: bool = False) -> Pixels | Unreadable:
    """The pixels of a picture.

    ``value``: uint8 array (height, width) or (height, width, channels), nested lists of such numbers, encoded bytes,
    ``{"bytes": ..., "path": ...}`` as Hugging Face data sets store them, the path of a file, or a Pillow image.
    ``side``: resize to so many pixels in height and width.
    ``colour``: turn greyscale into three equal channels.
    """
    try:
        pixels = _pixels(value)
        if side is not None and pixels.shape[:2] != (side, side):
            pixels = _resized(pixels, side)
    except ValueError as error:
        return Unreadable(str(error))
    return np.repeat(pixels, 3, axis=2) if colour and pixels.shape[2] == 1 else pixels


def _pixels(value: Any) -> Pixels:
    """Raises ValueError with the fault."""
    from PIL import Image

    if isinstance(value, np.ndarray | list):
        return _array(value)
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


def _array(value: Any) -> Pixels:
    pixels = value if isinstance(value, np.ndarray) else _of_lists(value)
    if pixels.dtype != np.uint8:
        raise ValueError(f"the pixels are {pixels.dtype}: give uint8, from 0 to 255")
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or 0 in pixels.shape:
        shape = " x ".join(map(str, pixels.shape))
        raise ValueError(f"the picture is {shape}: give height x width, or height x width x 1 or 3 channels")
    return pixels


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

    plain = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
    resized: Pixels = np.asarray(Image.fromarray(plain).resize((side, side), Image.Resampling.BILINEAR))
    return resized[:, :, None] if resized.ndim == 2 else resized
