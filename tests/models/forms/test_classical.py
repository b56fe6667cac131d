"""The built-in networks: sizes known from their papers, inputs that they take and refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rondo.config.inputs import BUILTIN_NETWORKS
from rondo.models.forms.builtin.classical import CNN, LSTM, NETWORKS, Sizes

NORMS: tuple[Any, ...] = ("group", "batch")
CIFAR, MNIST = (3, 32, 32), (1, 28, 28)


def numbers(name: str, image: tuple[int, int, int], outputs: int = 10, *, groups: bool = False) -> int:
    norm: Any = "group" if groups else "batch"
    return sum(p.numel() for p in NETWORKS[name](Sizes(image, outputs, norm)).parameters())


def test_configuration_knows_every_network() -> None:
    assert set(BUILTIN_NETWORKS) == set(NETWORKS)


@pytest.mark.parametrize(
    ("name", "image", "expected"),
    [
        ("builtin:resnet10", CIFAR, 4_903_242),
        ("builtin:resnet18", CIFAR, 11_173_962),  # a ResNet-18 with a 3x3 stem and 10 classes
        ("builtin:mlp", MNIST, 784 * 200 + 200 + 200 * 10 + 10),
        ("builtin:2nn", MNIST, 199_210),  # McMahan et al. 2017
        ("builtin:relu", MNIST, 784 * 784 + 784 * 10),
        ("builtin:no-relu", MNIST, 784 * 784 + 784 * 10),
        ("builtin:cnn", CIFAR, 64 * 76 + 64 * 1601 + 1601 * 120 + 121 * 64 + 65 * 10),
    ],
)
def test_number_of_parameters(name: str, image: tuple[int, int, int], expected: int) -> None:
    assert numbers(name, image) == expected


@pytest.mark.parametrize("name", sorted(set(NETWORKS) - {"builtin:lstm"}))
@pytest.mark.parametrize("image", [CIFAR, MNIST, (1, 16, 16)])
def test_every_size_of_image_gives_logits(name: str, image: tuple[int, int, int]) -> None:
    module = NETWORKS[name](Sizes(image, 7, "group")).eval()
    assert module(torch.zeros(2, *image)).shape == (2, 7)


def test_network_without_relu_is_linear() -> None:
    images = torch.randn(2, 5, *MNIST, generator=torch.Generator().manual_seed(0))
    for name, linear in (("builtin:no-relu", True), ("builtin:relu", False)):
        module = NETWORKS[name](Sizes(MNIST, 10, "batch"))
        one, other = map(module, images)
        assert torch.allclose(module(images[0] + images[1]), one + other, atol=1e-4) is linear


def test_small_images_are_refused_by_the_convolutions() -> None:
    with pytest.raises(ValueError, match="at least 16 x 16, not 8 x 8"):
        CNN(Sizes((1, 8, 8), 10, "batch"))


def test_group_normalisation_has_no_statistics() -> None:
    groups, batch = (NETWORKS["builtin:resnet10"](Sizes(CIFAR, 10, norm)) for norm in NORMS)
    assert not list(groups.buffers())
    assert len(list(batch.buffers())) == 3 * 12
    assert numbers("builtin:resnet10", CIFAR, groups=True) == numbers("builtin:resnet10", CIFAR)


def test_padding_does_not_change_a_text() -> None:
    torch.manual_seed(0)
    module = LSTM(Sizes((0, 0, 0), 3, "batch")).eval()
    ids, mask = torch.tensor([[5, 9, 2]]), torch.ones(1, 3, dtype=torch.long)
    padded = module(torch.tensor([[5, 9, 2, 0, 0]]), torch.tensor([[1, 1, 1, 0, 0]]))
    torch.testing.assert_close(padded, module(ids, mask))


def test_normalisation_without_statistics_is_by_the_batch_always() -> None:
    """As in FedLoRU's official code: a row's output depends on its batch, in evaluation too."""
    module = NETWORKS["builtin:resnet10"](Sizes(MNIST, 10, "batch-no-statistics")).eval()
    assert not list(module.buffers())
    assert [n for n, _ in module.named_parameters()] == [
        n for n, _ in NETWORKS["builtin:resnet10"](Sizes(MNIST, 10, "batch")).named_parameters()
    ]
    rows = torch.randn(6, *MNIST, generator=torch.Generator().manual_seed(0))
    together = module(rows)
    torch.testing.assert_close(together, module.train()(rows))
    assert not torch.allclose(module(rows[:3]), together[:3], atol=1e-2)
