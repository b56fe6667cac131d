"""The papers' models that no hub has: networks for images of any size and for texts of hashed words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from rondo.config.inputs import Norm
from rondo.config.schema import RunConfig
from rondo.models.forms.builtin.words import word_vectors
from rondo.process import seeded

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
