"""The gradients of rows in private steps equal opacus's, layer by layer, at a hundred random shapes each."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from rondo.models.networks.adapted_layer import Site
from rondo.models.networks.adapted_network import AdaptedNetwork
from rondo.models.networks.network import Network
from rondo.models.networks.rows import Rows
from rondo.models.networks.whole_network import WholeNetwork
from rondo.params import Params, add_client_axis
from rondo.privacy.steps import row_gradients

opacus = pytest.importorskip("opacus")
CASES = range(100)
Draw = random.Random


@dataclass(frozen=True)
class Case:
    """A layer, the inputs of a few rows, and the same layer as opacus knows it."""

    network: Network
    x: Tensor
    stock: nn.Module
    names: dict[str, str]
    """The stock module's name of every trained tensor."""


def whole(layer: nn.Module, x: Tensor) -> Case:
    stock = copy.deepcopy(layer)
    names = [n for n, _ in layer.named_parameters()]
    return Case(WholeNetwork(layer, names), x, stock, {n: n for n in names})


def values(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def linear(draw: Draw) -> Case:
    inner, tokens = draw.randint(1, 6), [draw.randint(1, 4) for _ in range(draw.randint(0, 2))]
    layer = nn.Linear(inner, draw.randint(1, 5), bias=draw.random() < 0.5)
    return whole(nn.Sequential(layer), values(draw.randint(1, 5), *tokens, inner))


def embedding(draw: Draw) -> Case:
    words = draw.randint(2, 9)
    layer = nn.Embedding(words, draw.randint(1, 4))  # opacus gives a padding_idx a gradient, and torch does not
    return whole(nn.Sequential(layer), torch.randint(words, (draw.randint(1, 5), draw.randint(1, 6))))


def normalisation(draw: Draw) -> Case:
    groups, width = draw.randint(1, 3), draw.randint(2, 4)
    channels, rows = groups * width, draw.randint(1, 5)
    kind = draw.choice(["layer", "group", "instance"])
    if kind == "layer":
        return whole(nn.Sequential(nn.LayerNorm(channels)), values(rows, draw.randint(1, 4), channels))
    layer = nn.GroupNorm(groups, channels) if kind == "group" else nn.InstanceNorm2d(channels, affine=True)
    # Behind a layer, since torch 2.13 crashes in the backward pass of a GroupNorm on pictures without a gradient.
    return whole(nn.Sequential(nn.Conv2d(channels, channels, 1), layer), values(rows, channels, draw.randint(2, 4), 3))


def convolution(draw: Draw) -> Case:
    dimensions, groups = draw.randint(1, 3), draw.choice([1, 1, 2])
    kinds = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
    made: nn.Module = kinds[dimensions](
        groups * draw.randint(1, 2), groups * draw.randint(1, 2), draw.randint(1, 3), stride=draw.randint(1, 2),
        padding=draw.randint(0, 1), dilation=draw.randint(1, 2), groups=groups, bias=draw.random() < 0.5,
    )  # fmt: skip
    sides = [draw.randint(5, 6) for _ in range(dimensions)]
    return whole(nn.Sequential(made), values(draw.randint(1, 4), made.in_channels, *sides))  # type: ignore[arg-type]


class Stock(nn.Module):
    """A frozen layer with its adapter as two layers of their own."""

    def __init__(self, inner: nn.Module, down: nn.Module, up: nn.Module, scale: float) -> None:
        super().__init__()
        self.inner, self.down, self.up, self.scale = inner.requires_grad_(False), down, up, scale

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.scale * self.up(self.down(x))  # type: ignore[no-any-return]


def lora(draw: Draw) -> Case:
    inp, out, rank, rows = (draw.randint(1, 5) for _ in range(4))
    layer: nn.Module
    down: nn.Module
    up: nn.Module
    if draw.random() < 0.5:
        layer, down, up = nn.Linear(inp, out), nn.Linear(inp, rank, bias=False), nn.Linear(rank, out, bias=False)
        x = values(rows, *[draw.randint(1, 4) for _ in range(draw.randint(0, 1))], inp)
        site = Site("0", "linear", (out, inp), rank, draw.random(), 0.0)
    else:
        size, how = draw.randint(1, 3), {"stride": draw.randint(1, 2), "padding": draw.randint(0, 1)}
        layer, down = nn.Conv2d(inp, out, size, **how), nn.Conv2d(inp, rank, size, bias=False, **how)
        up, x = nn.Conv2d(rank, out, 1, bias=False), values(rows, inp, 5, 5)
        site = Site("0", "conv2d", (out, inp * size * size), rank, draw.random(), 0.0)
    stock = Stock(copy.deepcopy(layer), down, up, site.scale)
    factors = {"0.A": down.weight.detach().reshape(rank, -1), "0.B": up.weight.detach().reshape(out, rank)}
    network = AdaptedNetwork(nn.Sequential(layer), (site,), (), {n: t.double() for n, t in factors.items()})
    return Case(network, x, stock, {"0.A": "down.weight", "0.B": "up.weight"})


LAYERS: tuple[Callable[[Draw], Case], ...] = (linear, embedding, normalisation, convolution, lora)


def losses(output: Tensor, weights: Tensor) -> Tensor:
    """Of each row, (rows,)."""
    return (output.tanh() * weights).flatten(1).sum(1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layer", LAYERS)
def test_gradients_of_rows_equal_opacuss(layer: Callable[[Draw], Case]) -> None:
    for seed in CASES:
        torch.manual_seed(seed)
        case = layer(Draw(seed))
        case.network.module.double()
        stock = opacus.GradSampleModule(case.stock.double(), loss_reduction="sum")
        count = len(case.x)
        expected = stock(case.x)
        weights = values(*expected.shape)
        losses(expected, weights).sum().backward()

        def objective(seen: Params, case: Case = case, weights: Tensor = weights) -> Tensor:
            rows = Rows((1,) * len(case.x))
            return losses(case.network(seen, {}, {"x": case.x}, None, rows), weights)

        start = add_client_axis({n: t.double() for n, t in case.network.initial.items()})
        found = row_gradients(start, torch.zeros(count, dtype=torch.long), objective)
        of_stock = dict(stock._module.named_parameters())
        for name, gradient in found.items():
            theirs = of_stock[case.names[name]].grad_sample.reshape(gradient.shape)
            torch.testing.assert_close(
                gradient, theirs, rtol=1e-9, atol=1e-12, msg=partial("{} {}: {}".format, name, seed)
            )
