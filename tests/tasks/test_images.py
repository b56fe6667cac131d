"""Pictures as rows hold them: every form that is opened, and the reason for every one that is not."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rondo.tasks.images.reading import Unreadable, opened

GREY = np.arange(48, dtype=np.uint8).reshape(6, 8)
COLOUR = np.arange(144, dtype=np.uint8).reshape(6, 8, 3)


def encoded(pixels: Any, form: str = "PNG", mode: str | None = None) -> bytes:
    file = io.BytesIO()
    (pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels, mode)).save(file, form)
    return file.getvalue()


@pytest.mark.parametrize("pixels", [GREY, COLOUR], ids=["grey", "colour"])
@pytest.mark.parametrize(
    "form",
    [lambda p: p, lambda p: p.tolist(), encoded, lambda p: {"bytes": encoded(p), "path": "a.png"}, Image.fromarray],
    ids=["array", "lists", "bytes", "struct", "pillow"],
)
def test_every_form_opens_to_the_same_pixels(form: Any, pixels: Any) -> None:
    result = opened(form(pixels))
    assert not isinstance(result, Unreadable)
    assert result.dtype == np.uint8
    assert result.shape == (6, 8, 3 if pixels.ndim == 3 else 1)
    assert np.array_equal(result.squeeze(), pixels)


def test_list_of_numbers_is_laid_out() -> None:
    """As LEAF has pictures."""
    for pixels in (GREY, COLOUR, GREY / 255):
        shape = (*pixels.shape, 1)[:3]
        result = opened(pixels.ravel().tolist(), shape=shape)
        assert not isinstance(result, Unreadable)
        np.testing.assert_array_equal(result, pixels.reshape(shape).astype(result.dtype))
    for shape in (None, (6, 9, 1)):
        result = opened(GREY.ravel(), shape=shape)
        assert isinstance(result, Unreadable)
        assert result.reason.startswith("the picture is a list of 48 numbers: say its height, width and channels")


def test_array_is_not_copied() -> None:
    assert np.shares_memory(opened(GREY), GREY)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shift", [0.0, -3.0], ids=["unit", "normalised"])
def test_floats_are_left_as_they_are(dtype: Any, shift: float) -> None:
    pixels = (COLOUR / 255 + shift).astype(dtype)
    result = opened(pixels)
    assert not isinstance(result, Unreadable)
    assert result.dtype == np.float32
    assert np.array_equal(result, pixels.astype(np.float32))
    assert dtype is not np.float32 or np.shares_memory(result, pixels)


def test_floats_are_resized_without_rounding() -> None:
    pixels = np.linspace(-2, 2, 6 * 8 * 3, dtype=np.float32).reshape(6, 8, 3)
    result = opened(pixels, side=2)
    assert not isinstance(result, Unreadable)
    assert result.dtype == np.float32
    assert result.mean() == pytest.approx(0, abs=1e-5)
    assert result[0, 0, 0] == pytest.approx(opened(pixels[:, :, 0], side=2)[0, 0, 0])  # type: ignore[index]


def test_channels_may_come_first() -> None:
    assert np.array_equal(opened(COLOUR.transpose(2, 0, 1)), COLOUR)
    assert np.array_equal(opened(GREY[None]), GREY[:, :, None])


def test_file_is_read_by_path(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(GREY))
    assert np.array_equal(np.squeeze(opened(tmp_path / "a.png")), GREY)


def test_jpeg_and_palette_and_black_and_white_open() -> None:
    assert opened(encoded(COLOUR, "JPEG")).shape == (6, 8, 3)  # type: ignore[union-attr]
    assert opened(encoded(Image.fromarray(COLOUR).convert("P"))).shape == (6, 8, 3)  # type: ignore[union-attr]
    assert opened(encoded(Image.fromarray(GREY).convert("1"))).shape == (6, 8, 1)  # type: ignore[union-attr]


def test_opaque_alpha_is_dropped() -> None:
    opaque = np.dstack([COLOUR, np.full((6, 8), 255, np.uint8)])
    assert np.array_equal(opened(encoded(opaque)), COLOUR)


def test_resizing_and_colour() -> None:
    result = opened(GREY, side=4, colour=True)
    assert result.shape == (4, 4, 3)  # type: ignore[union-attr]
    assert np.array_equal(result[:, :, 0], result[:, :, 2])  # type: ignore[index]
    assert np.array_equal(opened(np.full((6, 8, 3), 7, np.uint8), side=3), np.full((3, 3, 3), 7))


BAD: dict[str, tuple[Any, str]] = {
    "bytes as floats": (GREY / 1.0, "float64, and whole numbers up to 47: give bytes"),
    "not finite": (np.full((6, 8), np.nan), "pixels that are not finite"),
    "numbers": (GREY.astype(np.int64), "the pixels are int64: give uint8, from 0 to 255, or floats"),
    "beyond": ([[0, 300]], "the pixels are int64: give uint8"),
    "ragged": ([[0, 1], [2]], "the lists of pixels differ in length"),
    "channels": (np.zeros((4, 6, 8), np.uint8), "the picture is 4 x 6 x 8: give height x width"),
    "empty": (np.zeros((0, 8), np.uint8), "the picture is 0 x 8 x 1"),
    "text": ("a.png", "expected a picture, got 'a.png'"),
    "nothing": (None, "expected a picture, got None"),
    "only a path": ({"bytes": None, "path": "a.png"}, "store its bytes"),
    "no picture": (b"hello", "it is not in one of the formats PNG, JPEG"),
    "cut off": (encoded(np.zeros((64, 64, 3), np.uint8), "JPEG")[:300], "cannot be decoded"),
    "16 bits": (encoded(np.zeros((4, 4), np.uint16)), "more than 8 bits per channel"),
    "transparent": (encoded(np.zeros((4, 4, 4), np.uint8)), "transparent in places"),
    "no file": (Path("/nowhere.png"), "No such file"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_picture_has_a_reason(case: str) -> None:
    value, reason = BAD[case]
    result = opened(value)
    assert isinstance(result, Unreadable)
    assert reason in result.reason


def test_huge_picture_is_not_decoded() -> None:
    bomb = encoded(Image.new("1", (9000, 9000)))
    result = opened(bomb)
    assert isinstance(result, Unreadable)
    assert "scale it down" in result.reason


@pytest.mark.parametrize("alpha", [0, 254], ids=["clear", "nearly opaque"])
def test_one_transparent_pixel_is_enough_to_refuse(alpha: int) -> None:
    pixels = np.dstack([COLOUR, np.full((6, 8), 255, np.uint8)])
    pixels[2, 3, 3] = alpha
    result = opened(encoded(pixels))
    assert isinstance(result, Unreadable)
    assert "transparent in places" in result.reason
