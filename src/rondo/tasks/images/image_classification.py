"""Classification of pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import torch

from rondo.config.inputs import Augmentation, Normalization, TaskConfig
from rondo.errors import ConfigError
from rondo.tasks.class_scores import ClassTask
from rondo.tasks.images.batches import channels, cropped_and_flipped, normalized
from rondo.tasks.images.reading import Pixels, Unreadable, opened
from rondo.tasks.images.store import ImageExample, ImageStore
from rondo.tasks.row_checks import Row, RowProblem, value_name
from rondo.tasks.task import Batch, Picture


class ImageClassification(ClassTask):
    """Image classification, scored by accuracy. The cost of an example is its number of pixels.

    ``shape``: height, width and channels of all pictures; None where no rows are known.
    ``labels``: the label names, in the order of the classes.
    """

    def __init__(
        self,
        image: str,
        label: str,
        labels: Sequence[str],
        shape: tuple[int, int, int] | None,
        normalize: Normalization,
        augmentation: Augmentation,
    ) -> None:
        self.image, self.label, self.labels, self.shape = image, label, tuple(labels), shape
        self.normalize, self.augmentation = normalize, augmentation
        self._index = {name: i for i, name in enumerate(labels)}

    @classmethod
    def of(cls, config: TaskConfig, tokenizer: Any, labels: Sequence[str]) -> Self:
        """See :meth:`rondo.tasks.task.Task.of`."""
        shape = None
        if config.image_shape is not None:
            height, width, colours = config.image_shape
            shape = (height, width, colours)
        return cls(config.image or "", config.label or "", labels, shape, config.normalize, config.augment)

    @classmethod
    def with_columns(cls, config: TaskConfig, text: str | None, label: str | None) -> TaskConfig:
        """See :meth:`rondo.tasks.task.Task.with_columns`: ``image`` and ``label``, as image data sets name them."""
        return config.model_copy(update={"label": config.label or "label", "image": config.image or "image"})

    @classmethod
    def settled(cls, config: TaskConfig, rows: Iterable[Row]) -> TaskConfig:
        """See :meth:`rondo.tasks.task.Task.settled`: the shape of the first picture that can be read. Raises
        :class:`ConfigError` if ``task.normalize`` has constants for another number of channels."""
        shape = config.image_shape
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
        """See :meth:`rondo.tasks.task.Task.opened`: the picture is decoded, and resized to ``task.image_size``."""
        column = config.image or ""
        if column not in row:
            return dict(row)
        shape = config.image_shape
        colour = shape is not None and shape[2] == 3
        return {**row, column: opened(row[column], side=config.image_size, shape=shape, colour=colour)}

    @classmethod
    def problem(cls, config: TaskConfig, row: Row, number: int) -> RowProblem | None:
        """See :meth:`rondo.tasks.task.Task.problem`."""
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
        """See :meth:`rondo.tasks.task.Task.encode`."""
        return [ImageExample(row[self.image], self._index[value_name(row[self.label])]) for row in rows]

    def unlabelled(self, rows: Sequence[Row]) -> list[ImageExample]:
        """Examples of rows whose label is not read; each has the target 0."""
        return [ImageExample(row[self.image], 0) for row in rows]

    def collate(self, examples: Sequence[ImageExample]) -> tuple[Batch, Batch]:
        """See :meth:`rondo.tasks.task.Task.collate`: ``pixel_values`` (rows, channels, height, width), and the target
        ``labels`` (rows,)."""
        inputs = {"pixel_values": normalized([e.pixels for e in examples], self.normalize)}
        return inputs, {"labels": torch.tensor([e.target for e in examples])}

    @property
    def augments(self) -> bool:
        """See :attr:`rondo.tasks.task.Task.augments`."""
        return self.augmentation != "none"

    def augment(self, inputs: Batch, rows_per_client: Sequence[int], generators: Sequence[torch.Generator]) -> Batch:
        """See :meth:`rondo.tasks.task.Task.augment`."""
        if self.augmentation == "none":
            return inputs
        pixels = cropped_and_flipped(inputs["pixel_values"], rows_per_client, generators, self.normalize)
        return {**inputs, "pixel_values": pixels}

    def trial_batch(self) -> tuple[Batch, None]:
        """See :meth:`rondo.tasks.task.Task.trial_batch`: noise of the pictures' shape."""
        height, width, colours = self.shape or (0, 0, 0)
        noise = torch.rand(6, colours, height, width, generator=torch.Generator().manual_seed(0))
        return {"pixel_values": noise}, None

    def picture(self, example: ImageExample) -> Picture:
        """See :meth:`rondo.tasks.task.Task.picture`: the caption is the label."""
        pixels = example.pixels
        if pixels.dtype != np.uint8:  # its lowest pixel is shown black, and its highest white
            low, high = pixels.min(), pixels.max()
            pixels = ((pixels - low) * (255 / max(high - low, 1e-9))).astype(np.uint8)
        return Picture(pixels, self.labels[example.target])

    def store(self) -> ImageStore:
        """See :meth:`rondo.tasks.task.Task.store`."""
        return ImageStore()


def _size(shape: Sequence[int]) -> str:
    return f"{' x '.join(map(str, shape[:2]))} with {shape[2]} channel{'s' if shape[2] != 1 else ''}"
