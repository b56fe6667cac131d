"""Classification of pictures."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from rondo.config.inputs import Augmentation, Normalization, TaskConfig
from rondo.errors import ConfigError
from rondo.tasks.class_scores import ClassTask
from rondo.tasks.images.reading import Pixels, Unreadable, opened
from rondo.tasks.row_checks import Row, RowLabels, RowProblem
from rondo.tasks.task import Batch, Picture, Store

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


@dataclass(frozen=True, eq=False)
class ImageExample:
    """One picture."""

    pixels: Pixels
    """(height, width, channels) in uint8 or float32; never written to, since it may be a view of the source's own
    array."""
    target: int | tuple[int, ...]
    """Its class, or its classes if it may have several."""

    @property
    def cost(self) -> int:
        return int(self.pixels.shape[0] * self.pixels.shape[1])


class ImageStore(Store):
    """All pictures of a run. It holds the arrays it is given and copies none."""

    def __init__(self) -> None:
        self._pixels: list[Pixels] = []
        self._targets: list[int | tuple[int, ...]] = []

    def add(self, examples: Iterable[ImageExample]) -> range:
        first = len(self._pixels)
        for example in examples:
            self._pixels.append(example.pixels)
            self._targets.append(example.target)
        return range(first, len(self._pixels))

    def __getitem__(self, number: int) -> ImageExample:
        return ImageExample(self._pixels[number], self._targets[number])

    def account(self) -> dict[str, float]:
        """Of pictures of floats, their number and the range of their pixels."""
        floats = [pixels for pixels in self._pixels if pixels.dtype != np.uint8]
        if not floats:
            return {}
        low, high = min(float(p.min()) for p in floats), max(float(p.max()) for p in floats)
        of_bytes = len(self._pixels) - len(floats)
        return {"pictures_of_floats": len(floats), "pictures_of_bytes": of_bytes, "lowest": low, "highest": high}

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for pixels in self._pixels:
            digest.update(str(pixels.shape).encode())
            digest.update(pixels.tobytes())
        for target in self._targets:
            digest.update(array("i", [target] if isinstance(target, int) else [len(target), *target]).tobytes())
        return digest.hexdigest()


class ImageClassification(ClassTask):
    """Image classification, scored by accuracy. The cost of an example is its number of pixels.

    ``shape``: height, width and channels of all pictures; None where no rows are known.
    ``labels``: the label names, in the order of the classes.
    """

    def __init__(
        self,
        image: str,
        label: str | RowLabels,
        labels: Sequence[str],
        shape: tuple[int, int, int] | None,
        normalize: Normalization,
        augmentation: Augmentation,
    ) -> None:
        self.label = RowLabels((label,)) if isinstance(label, str) else label
        self.image, self.labels, self.shape = image, tuple(labels), shape
        self.normalize, self.augmentation = normalize, augmentation
        self._index = {name: i for i, name in enumerate(labels)}

    @classmethod
    def of(cls, config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Self:
        shape = None
        if config.image_shape is not None:
            height, width, colours = config.image_shape
            shape = (height, width, colours)
        return cls(config.image or "", RowLabels.of(config), labels, shape, config.normalize, config.augment)

    @classmethod
    def with_columns(cls, config: TaskConfig, text: str | None, label: str | None) -> TaskConfig:
        return config.model_copy(update={"label": config.label or "label", "image": config.image or "image"})

    @classmethod
    def settled(cls, config: TaskConfig, rows: Iterable[Row]) -> TaskConfig:
        """The shape of the first picture that can be read, and whether a row may have several labels. Raises
        :class:`ConfigError` if ``task.normalize`` has constants for another number of channels."""
        config, shape = super().settled(config, rows), config.image_shape
        if shape is None:
            pictures = (opened(row.get(config.image or ""), side=config.image_size) for row in rows)
            first = next((p for p in pictures if not isinstance(p, Unreadable)), None)
            shape = None if first is None else list(first.shape)
        wanted = channels(config.normalize)
        if shape is not None and wanted is not None and shape[2] != wanted:
            message = f"{config.normalize!r} has constants for {wanted} channels and the pictures have {shape[2]}: "
            raise ConfigError.at("task.normalize", message + "take 'unit' or 'half'")
        return config.model_copy(update={"image_shape": shape})

    @classmethod
    def opened(cls, config: TaskConfig, row: Row) -> dict[str, Any]:
        """The picture is decoded, and resized to ``task.image_size``."""
        column = config.image or ""
        if column not in row:
            return dict(row)
        shape = config.image_shape
        colour = shape is not None and shape[2] == 3
        return {**row, column: opened(row[column], side=config.image_size, shape=shape, colour=colour)}

    @classmethod
    def problem(cls, config: TaskConfig, row: Row, number: int) -> RowProblem | None:
        column = config.image or ""
        picture: Pixels | Unreadable = row[column]
        if isinstance(picture, Unreadable):
            return RowProblem(number, column, picture.reason)
        if picture.dtype != np.uint8 and config.normalize != "unit" and (picture.min() < 0 or picture.max() > 1):
            span = f"the pixels are from {picture.min():.3g} to {picture.max():.3g}, so they are normalised already"
            fault = f", and task.normalize = {config.normalize!r} takes bytes or pixels from 0 to 1: "
            return RowProblem(number, column, f"{span}{fault}set it to 'unit', which leaves them")
        shape = list(picture.shape)
        if config.image_shape is None or shape == config.image_shape:
            return None
        reason = f"the picture is {_size(shape)}, and the others are {_size(config.image_shape)}: "
        if shape[:2] != config.image_shape[:2]:
            return RowProblem(number, column, reason + "set task.image_size, to which all are resized")
        return RowProblem(number, column, reason + "set task.image_shape with 3 channels, which greyscale is turned to")

    def encode(self, rows: Sequence[Row]) -> list[ImageExample]:
        return [ImageExample(row[self.image], self.numbers(row)) for row in rows]

    def unlabelled(self, rows: Sequence[Row]) -> list[ImageExample]:
        """Examples of rows whose label is not read; each has the target 0, or none."""
        return [ImageExample(row[self.image], () if self.label.several else 0) for row in rows]

    def collate(self, examples: Sequence[ImageExample]) -> tuple[Batch, Batch]:
        """``pixel_values`` (rows, channels, height, width), and the target ``labels`` (:meth:`targets`)."""
        inputs = {"pixel_values": normalized([e.pixels for e in examples], self.normalize)}
        return inputs, self.targets([e.target for e in examples])

    @property
    def augments(self) -> bool:
        return self.augmentation != "none"

    def augment(self, inputs: Batch, rows_per_client: Sequence[int], generators: Sequence[torch.Generator]) -> Batch:
        if self.augmentation == "none":
            return inputs
        pixels = cropped_and_flipped(inputs["pixel_values"], rows_per_client, generators, self.normalize)
        return {**inputs, "pixel_values": pixels}

    def trial_batch(self) -> tuple[Batch, None]:
        """Noise of the pictures' shape."""
        height, width, colours = self.shape or (0, 0, 0)
        noise = torch.rand(6, colours, height, width, generator=torch.Generator().manual_seed(0))
        return {"pixel_values": noise}, None

    def picture(self, example: ImageExample) -> Picture:
        pixels = example.pixels
        if pixels.dtype != np.uint8:  # its lowest pixel is shown black, and its highest white
            low, high = pixels.min(), pixels.max()
            pixels = ((pixels - low) * (255 / max(high - low, 1e-9))).astype(np.uint8)
        shown = [example.target] if isinstance(example.target, int) else example.target
        return Picture(pixels, ", ".join(self.labels[number] for number in shown))

    def store(self) -> ImageStore:
        return ImageStore()


def _size(shape: Sequence[int]) -> str:
    return f"{' x '.join(map(str, shape[:2]))} with {shape[2]} channel{'s' if shape[2] != 1 else ''}"
