"""Inputs of the head that are computed once per example, against computing them in every epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rondo.algorithm import Client, Objective, Round, plain
from rondo.config import ClientsConfig, TrainConfig
from rondo.engine.client.trainer import CohortTrainer
from rondo.models.networks.whole_network import WholeNetwork
from rondo.models.shortcuts import head_inputs
from rondo.models.shortcuts.head_inputs import head_layer
from rondo.models.shortcuts.prefix import ShortcutRefused
from rondo.params import Params, Select, add_client_axis, everything, head
from rondo.tasks.images.image_classification import ImageClassification, ImageExample
from rondo.tasks.numbers.linear import LinearRegression
from rondo.tasks.task import Task

ROWS = 13


class Body(nn.Module):
    """Counts the rows that it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.rows = nn.Linear(4, 6), [0]  # a list, which all copies share

    def __deepcopy__(self, memo: dict[int, Any]) -> Body:
        twin = Body().double()
        twin.layer.weight, twin.layer.bias, twin.rows = self.layer.weight, self.layer.bias, self.rows
        return twin

    def forward(self, x: Tensor) -> Tensor:
        self.rows[0] += len(x)
        return self.layer(x).relu()  # type: ignore[no-any-return]


def network(kept: bool = True, *extra: nn.Module) -> WholeNetwork:
    torch.manual_seed(0)
    module = nn.Sequential(Body(), *extra, nn.Linear(6, 2)).double()
    made = WholeNetwork(module, [n for n, _ in module.named_parameters()], [f"{len(extra) + 1}.{n}" for n in NAMES])
    if kept:
        made.head_layer = head_layer(made, LinearRegression(), points(4))
    module[0].rows[0] = 0  # type: ignore[index, operator, union-attr]
    return made


NAMES = ("weight", "bias")


def points(count: int) -> Any:
    g = np.random.default_rng(1)
    rows = [{"x": g.normal(size=4).tolist(), "y": g.normal(size=2).tolist()} for _ in range(count)]
    return tuple(LinearRegression().encode(rows))


def fitted(
    of: WholeNetwork, train: Select = head, objective: Objective = plain, **length: Any
) -> tuple[Params, Tensor, int]:
    """The tensors and losses after a fit, and the number of rows that the body computed."""
    config = TrainConfig(batch_size=4, momentum=0.9, optimizer="sgd", lr=0.1)
    trainer = CohortTrainer(
        of, LinearRegression(), (Client("c", ROWS),), (points(ROWS),), Round(0, 1, 0, 1), config, ClientsConfig(), {}
    )
    fit = trainer.fit(add_client_axis(of.initial), train=train, objective=objective, **(length or {"epochs": 5}))
    return fit.params, trainer.losses[0], of.module[0].rows[0]  # type: ignore[index, return-value, union-attr]


@pytest.mark.parametrize("length", [{"epochs": 5}, {"steps": 7}])
def test_fit_of_the_head_is_the_same_in_float64(length: dict[str, int]) -> None:
    reused, losses, rows = fitted(network(), **length)
    expected, expected_losses, all_rows = fitted(network(kept=False), **length)
    for name, tensor in expected.items():
        torch.testing.assert_close(reused[name], tensor, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(losses, expected_losses, rtol=1e-12, atol=1e-14)
    assert not expected["head:1.weight"].equal(network().initial["head:1.weight"][None])
    assert rows == ROWS < all_rows


@pytest.mark.parametrize(
    ("train", "objective", "length", "rows"),
    [
        (everything, plain, {"epochs": 5}, 5 * ROWS),
        (head, plain, {"epochs": 1}, ROWS),
        (head, plain, {"steps": 3}, 4 + 4 + 1),
        (head, lambda params, loss: loss(params), {"epochs": 2}, 2 * ROWS),
    ],
    ids=["the body is trained", "one epoch", "fewer steps than an epoch", "an objective may move the body"],
)
def test_body_is_computed_in_every_epoch(
    train: Select, objective: Objective, length: dict[str, int], rows: int
) -> None:
    assert fitted(network(), train, objective, **length)[2] == rows


def test_inputs_beyond_the_memory_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_inputs, "_MOST_BYTES", ROWS * 6 * 8 - 1)
    reused, _, rows = fitted(network())
    assert rows > 5 * ROWS
    assert reused["head:1.bias"].equal(fitted(network(kept=False))[0]["head:1.bias"])


class AcrossRows(nn.Module):
    """A layer that reads the whole batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Twice(nn.Module):
    """The output is more than the last layer's."""

    def __init__(self, make: Callable[[nn.Linear, Tensor], Tensor]) -> None:
        super().__init__()
        self.make, self.fc = make, nn.Linear(4, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.make(self.fc, x)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2)), "normalises by the batch"),
        (nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.1), nn.Linear(6, 2)), "drops at random"),
        (nn.Sequential(nn.Linear(4, 6), AcrossRows(), nn.Linear(6, 2)), "depends on the other rows"),
        (Twice(lambda fc, x: fc(x) + fc(x)), "its output is more than the head's"),
        (Twice(lambda fc, x: fc(x).relu_()), "its output is more than the head's"),
        (Twice(lambda fc, x: fc(x).clamp_(min=-1e9)), "its output is more than the head's"),  # no number changes here
        (Twice(lambda fc, x: fc(x[:, None])[:, 0]), "its output is more than the head's"),
    ],
)
def test_networks_whose_inputs_are_not_kept(module: nn.Module, words: str) -> None:
    module = module.double()
    names = [n for n, _ in module.named_parameters()]
    made = WholeNetwork(module, names, names[-2:])
    with pytest.raises(ShortcutRefused, match=words):
        head_layer(made, LinearRegression(), points(4))


def test_head_of_two_layers_is_not_kept() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)).double()
    names = [n for n, _ in module.named_parameters()]
    with pytest.raises(ShortcutRefused, match="one layer"):
        head_layer(WholeNetwork(module, names, names), LinearRegression(), points(4))


@pytest.mark.parametrize("augment", ["none", "crop-flip"])
def test_augmented_pictures_are_not_kept(augment: Any) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(48, 6), nn.Linear(6, 2))
    names = [n for n, _ in module.named_parameters()]
    made = WholeNetwork(module, names, names[-2:])
    task: Task = ImageClassification("image", "label", ["a", "b"], (4, 4, 3), "unit", augment)
    g = np.random.default_rng(0)
    examples = [ImageExample(g.integers(0, 255, (4, 4, 3), dtype=np.uint8), i % 2) for i in range(4)]
    if augment == "none":
        assert head_layer(made, task, examples) == "2"
        return
    with pytest.raises(ShortcutRefused, match=r"task\.augment"):
        head_layer(made, task, examples)
