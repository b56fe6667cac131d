"""The papers' models that no hub has: networks for images of any size and for texts, and the words of the texts as
numbers, by their digest or by a list that is everybody's, with their vectors from a text file, as GloVe's.

A vocabulary of all clients' words would reveal some of them to the server. Words with the same digest share an
embedding."""

from __future__ import annotations

import functools
import hashlib
import re
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rondo.config.inputs import Norm
from rondo.config.schema import RunConfig
from rondo.errors import ConfigError
from rondo.process import seeded

_WORD = re.compile(r"\w+|[^\w\s]")
SEPARATOR, RESERVED = 1, 2
"""The number between two texts, and how many numbers no word has."""


class WordTokenizer:
    """A tokenizer in the form of transformers', as far as tasks use it. 0 pads and 1 separates two texts.

    ``number``: the number of a word in lower case, 1 if it has none.
    """

    pad_token_id = 0
    unk_token = None
    all_special_tokens: Sequence[str] = ()
    added_tokens_decoder: Mapping[int, Any] = MappingProxyType({})

    def __init__(self, number: Callable[[str], int]) -> None:
        self.number = number

    def __call__(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        truncation: bool = False,
        max_length: int | None = None,
        verbose: bool = True,
    ) -> dict[str, list[list[int]]]:
        """The numbers of the words of every text, or of a text and its pair, under ``input_ids``. ``truncation`` cuts
        rows to ``max_length``, of a pair the longer text first. A text without a word is a single separator."""
        limit = max_length if truncation else None
        rows = []
        for i, text in enumerate(texts):
            ids = self._numbers(text)
            if pairs is not None:
                ids = _joined(ids, self._numbers(pairs[i]), limit)
            rows.append((ids or [SEPARATOR])[:limit])
        return {"input_ids": rows}

    def _numbers(self, text: str) -> list[int]:
        return [self.number(word) for word in _WORD.findall(text.lower())]


def _joined(first: list[int], second: list[int], limit: int | None) -> list[int]:
    room = len(first) + len(second) if limit is None else max(0, limit - 1)
    shorter = min(len(first), len(second), room // 2)
    kept = room - shorter if len(first) >= len(second) else shorter
    return [*first[:kept], SEPARATOR, *second[: room - min(kept, len(first))]]


@functools.lru_cache(maxsize=2**16)
def hashed(word: str, size: int) -> int:
    """A word's number below ``size``, by its digest."""
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return RESERVED + int.from_bytes(digest) % (size - RESERVED)


@dataclass(frozen=True)
class WordVectors:
    """Words with their vectors."""

    numbers: Mapping[str, int]
    table: Tensor
    """The vectors by number, (words + 2, dimensions); those of padding, and of unknown words, are zeros."""

    def number(self, word: str) -> int:
        return self.numbers.get(word, SEPARATOR)


def word_vectors(config: RunConfig) -> WordVectors | None:
    """The vectors that ``model.vectors`` names; None if it names none. Raises :class:`ConfigError`."""
    if config.model.vectors is None:
        return None
    path = Path(config.model.vectors).expanduser()
    try:
        state = path.stat()
        return _read(path, state.st_mtime_ns, state.st_size)
    except (OSError, ValueError) as error:  # a UnicodeDecodeError too
        remedy = "name a text file with a word and its numbers per line"
        raise ConfigError.at("model.vectors", f"{config.model.vectors!r} cannot be read: {error}; {remedy}") from None


@functools.lru_cache(maxsize=1)  # a run's tokenizer and its modules need it
def _read(path: Path, changed: int, size: int) -> WordVectors:
    with path.open(encoding="utf-8") as lines:
        return _parsed(lines)


def _parsed(lines: Iterable[str]) -> WordVectors:
    """Raises ValueError with the faulty line. The first line may be word2vec's: the numbers of words and of
    dimensions."""
    numbers: dict[str, int] = {}
    values = array("f")
    dimensions = 0
    for place, line in enumerate(lines, 1):
        parts = line.rstrip().split(" ")
        if place == 1 and len(parts) == 2 and all(map(str.isdecimal, parts)):
            continue
        dimensions = dimensions or len(parts) - 1
        word = " ".join(parts[:-dimensions])  # some of GloVe's have blanks
        if not word:
            raise ValueError(f"line {place} has not a word and {dimensions or 'some'} numbers")
        if word in numbers:
            continue
        try:
            values.extend(map(float, parts[-dimensions:]))
        except ValueError:
            raise ValueError(f"line {place} has not {dimensions} numbers behind {word!r:.40}") from None
        numbers[word] = RESERVED + len(numbers)
    table = torch.zeros(RESERVED + len(numbers), dimensions)
    if not numbers:
        raise ValueError("it has no words")
    table[RESERVED:] = torch.frombuffer(values, dtype=torch.float32).reshape(len(numbers), dimensions)
    if not table.isfinite().all():
        raise ValueError("some of its numbers are not finite")
    return WordVectors(numbers, table)


WORDS = 8192
"""Rows of the LSTM's embedding without vectors of words: hashed words, 0 for padding."""


@dataclass(frozen=True)
class Sizes:
    """The sizes that the data and the configuration give a model."""

    image: tuple[int, int, int]
    """Channels, height, width; zeros for texts."""
    outputs: int
    """Number of classes, or of numbers to predict."""
    norm: Norm
    """Normalisation in residual networks."""
    vectors: Tensor | None = None
    """The vectors of words, (words, dimensions), by their numbers."""

    @property
    def pixels(self) -> int:
        channels, height, width = self.image
        return channels * height * width


class CNN(nn.Module):
    """Five layers: two 5x5 convolutions of 64 channels, each with pooling, then 120, 64 and the outputs.

    Source: FedRep, appendix A ("a 5-layer CNN with two convolutional layers ... followed by three fully-connected
    layers"); the paper does not give the widths.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        channels, height, width = sizes.image
        self.conv1 = nn.Conv2d(channels, 64, 5)
        self.conv2 = nn.Conv2d(64, 64, 5)
        left = [((side - 4) // 2 - 4) // 2 for side in (height, width)]
        if min(left) < 1:
            raise ValueError(f"two 5x5 convolutions need images of at least 16 x 16, not {height} x {width}")
        self.fc1 = nn.Linear(64 * left[0] * left[1], 120)
        self.fc2 = nn.Linear(120, 64)
        self.fc3 = nn.Linear(64, sizes.outputs)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.conv1(pixel_values)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2).flatten(1)
        x = functional.relu(self.fc2(functional.relu(self.fc1(x))))
        return self.fc3(x)  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Two layers: 200 hidden units and the outputs."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.hidden = nn.Linear(sizes.pixels, 200)
        self.out = nn.Linear(200, sizes.outputs)

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.out(functional.relu(self.hidden(pixel_values.flatten(1))))  # type: ignore[no-any-return]


class TwoNN(nn.Module):
    """Three layers: twice 200 hidden units, and the outputs.

    Source: McMahan et al. 2017 ("MNIST 2NN"). FedRep's appendix A has two hidden layers for FEMNIST, of sizes that it
    does not give.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.hidden1 = nn.Linear(sizes.pixels, 200)
        self.hidden2 = nn.Linear(200, 200)
        self.out = nn.Linear(200, sizes.outputs)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = functional.relu(self.hidden1(pixel_values.flatten(1)))
        return self.out(functional.relu(self.hidden2(x)))  # type: ignore[no-any-return]


class TwoLayers(nn.Module):
    """``ReLU(x A B) W_out``: a hidden layer of zeros, of the input's width, whose low-rank change is trained, and a
    frozen random output. ``activation``: ReLU, or the identity.

    Source: RoLoRA, equation 10, and appendix A5.1 without ReLU.
    """

    def __init__(self, sizes: Sizes, activation: type[nn.Module]) -> None:
        super().__init__()
        self.activation = activation()
        self.hidden = nn.Linear(sizes.pixels, sizes.pixels, bias=False)
        self.out = nn.Linear(sizes.pixels, sizes.outputs, bias=False)

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.out(self.activation(self.hidden(pixel_values.flatten(1))))  # type: ignore[no-any-return]


class Block(nn.Module):
    """A basic residual block: two 3x3 convolutions, and a projection where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = norm(width)
        self.downsample = None
        if stride != 1 or channels != width:
            self.downsample = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), norm(width))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return functional.relu(y + (x if self.downsample is None else self.downsample(x)))


_NORMS: Mapping[Norm, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "batch-no-statistics": partial(nn.BatchNorm2d, track_running_stats=False),
    "group": partial(nn.GroupNorm, 8),
}


class ResNet(nn.Module):
    """A residual network for small images: a 3x3 stem without pooling, four stages of 64 to 512 channels.

    Source: FedLoRU, section 5.1 (ResNet-10 and ResNet-18). Its factorised layers are the convolutions in ``layer1`` to
    ``layer4``.
    """

    def __init__(self, sizes: Sizes, blocks: tuple[int, int, int, int]) -> None:
        super().__init__()
        norm = _NORMS[sizes.norm]
        channels = 64
        self.conv1 = nn.Conv2d(sizes.image[0], channels, 3, 1, 1, bias=False)
        self.bn1 = norm(channels)
        stages = []
        for stage, count in enumerate(blocks):
            width = 64 * 2**stage
            layers = []
            for i in range(count):
                layers.append(Block(channels, width, 2 if stage and i == 0 else 1, norm))
                channels = width
            stages.append(nn.Sequential(*layers))
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.fc = nn.Linear(channels, sizes.outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = functional.relu(self.bn1(self.conv1(pixel_values)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))  # type: ignore[no-any-return]


class LSTM(nn.Module):
    """Embedded words, an LSTM and two dense layers on the state after a text's last word.

    Source: FedRep, appendix A ("an RNN with an LSTM module followed by two fully-connected decoding layers"). The
    paper's embedding is GloVe's, in a file that ``model.vectors`` names, and fixed; without it, one is trained.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        if sizes.vectors is None:
            self.embedding = nn.Embedding(WORDS, 64, padding_idx=0)
        else:
            vectors = sizes.vectors.clone()
            self.embedding = nn.Embedding.from_pretrained(vectors, padding_idx=0)  # type: ignore[no-untyped-call]
        self.lstm = nn.LSTM(self.embedding.embedding_dim, 128, batch_first=True)
        self.fc1 = nn.Linear(128, 64)
        self.fc2 = nn.Linear(64, sizes.outputs)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(input_ids))
        last = attention_mask.sum(1).clamp_min(1) - 1
        x = states[torch.arange(len(last), device=last.device), last]
        return self.fc2(functional.relu(self.fc1(x)))  # type: ignore[no-any-return]


NETWORKS: Mapping[str, Callable[[Sizes], nn.Module]] = {
    "builtin:cnn": CNN,
    "builtin:mlp": MLP,
    "builtin:2nn": TwoNN,
    "builtin:resnet10": partial(ResNet, blocks=(1, 1, 1, 1)),
    "builtin:resnet18": partial(ResNet, blocks=(2, 2, 2, 2)),
    "builtin:relu": partial(TwoLayers, activation=nn.ReLU),
    "builtin:no-relu": partial(TwoLayers, activation=nn.Identity),
    "builtin:lstm": LSTM,
}
"""The models by their names in the configuration (:data:`rondo.config.inputs.BUILTIN_NETWORKS`)."""


def make(config: RunConfig, outputs: int) -> nn.Module:
    """The built-in network that ``model.name`` names, drawn from the run's seed. Raises ValueError for data that it
    does not take, and :class:`ConfigError` for vectors that cannot be read."""
    name, shape, features = config.model.name, config.task.image_shape, config.task.features
    flat = ("builtin:mlp", "builtin:2nn")
    takes = "text" if name == "builtin:lstm" else "images or numbers" if name in flat else "images"
    given = "images" if shape is not None else "numbers" if features is not None else "text"
    if given not in takes:
        raise ValueError(f"it takes {takes}, and the task has {given}")
    image = (0, 0, 0)
    if shape is not None:
        image = (shape[2], shape[0], shape[1])
    elif features is not None:
        image = (len(features), 1, 1)
    words = word_vectors(config)
    with seeded(config.seed):
        return NETWORKS[name](Sizes(image, outputs, config.model.norm, None if words is None else words.table))
