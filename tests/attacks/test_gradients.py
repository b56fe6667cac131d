"""Gradient matching: a picture is rebuilt from one upload, by search for the input whose gradient is what was sent
(Zhu et al. 2019, "Deep Leakage from Gradients"; the label is read from the head as in Zhao et al. 2020, "iDLG")."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from defences import Masked, median
from torch import Tensor
from torch.nn import functional

from composed import Composed
from rondo.config.inputs import GIVEN
from rondo.config.load import load
from rondo.data.demo.digits import digits
from rondo.params import Params
from rondo.privacy.accounts.accountant import noise_for
from rondo.privacy.mechanism.clip import clipped
from rondo.privacy.mechanism.noise import noised
from rondo.runs.assembling.assemble import assemble
from rondo.runs.assembling.given import Given

pytestmark = pytest.mark.slow

CLIENTS, NAMES = 30, ("hidden.A", "hidden.B", "head:out.weight", "head:out.bias")
Defence = Callable[[Tensor], Tensor]


@dataclass
class Victims:
    """Clients of one picture that took a step each.

    ``start``: what they were sent, by name.
    ``frozen``: weight and bias of the layer that has factors.
    ``scale``: of its factors.
    ``changes``: each one's change, as a vector over :data:`NAMES`.
    ``pictures``: (clients, 64).
    """

    start: Params
    frozen: tuple[Tensor, Tensor]
    scale: float
    changes: list[Tensor]
    pictures: Tensor

    def gradient(self, picture: Tensor, label: Tensor) -> Tensor:
        """The gradient of a picture's loss in everything that is sent, which an attacker can compute."""
        leaves = [self.start[name].detach().requires_grad_() for name in NAMES]
        a, b, out, bias = leaves
        weight, own = self.frozen
        hidden = torch.relu(picture @ weight.T + own + self.scale * (picture @ a.T) @ b.T)
        loss = functional.cross_entropy(hidden @ out.T + bias, label)
        found = torch.autograd.grad(loss, leaves, create_graph=True)
        return torch.cat([g.flatten() for g in found])

    def rebuilt(self, seen: Tensor) -> Tensor:
        """The picture, (64,), whose gradient is closest in angle to the change ``seen``."""
        step = -seen.float()
        label = step[-10:].argmin()  # the only class whose bias is pushed up
        draw = torch.Generator().manual_seed(0)
        picture = torch.rand(64, generator=draw).requires_grad_()
        search = torch.optim.Adam([picture], lr=0.05)
        for _ in range(300):
            search.zero_grad()
            distance = 1 - functional.cosine_similarity(self.gradient(picture, label), step, dim=0)
            distance.backward()  # type: ignore[no-untyped-call]
            search.step()
            with torch.no_grad():
                picture.clamp_(0, 1)
        return picture.detach()

    def told(self, defence: Defence) -> tuple[float, float]:
        """The mean correlation of rebuilt pictures with the clients' own, and the share of them that are closer to
        the client's own picture than to any other's."""
        made = torch.stack([self.rebuilt(defence(change)) for change in self.changes])
        both = torch.corrcoef(torch.cat([made, self.pictures]).nan_to_num())[: len(made), len(made) :].nan_to_num()
        return float(both.diagonal().mean()), float((both.argmax(1) == torch.arange(len(made))).double().mean())


def victims(privacy: Mapping[str, Any] | None = None) -> Victims:
    rows = random.Random(0).sample(digits()[0], CLIENTS)
    config = load(
        {
            "rounds": 2,
            "task": {
                "kind": "image-classification",
                "labels": [str(digit) for digit in range(10)],
                "image_shape": [8, 8, 1],
            },
            "data": {"source": GIVEN, "test_source": GIVEN, "validation_fraction": 0.0, "min_examples": 1},
            "partition": {"kind": "natural", "column": "owner"},
            "model": {"name": "builtin:mlp"},
            "algorithm": {"name": "fedit"},
            "adapter": {"r": 8, "lora_alpha": 8, "target_modules": ["hidden"]},
            "train": {"optimizer": "sgd", "lr": 1e-3, "batch_size": 1, "local_steps": 1, "max_grad_norm": None},
            "clients": {"weighting": "uniform"},
            "evaluation": {"every": 0, "diagnostics_every": 0},
            **({"privacy": privacy} if privacy else {}),
        }
    )
    train = [{"image": r["image"], "label": str(r["label"]), "owner": f"o{i:02}"} for i, r in enumerate(rows)]
    run = assemble(config, "cpu", given=Given(train=train, test=train))
    sim = Composed(run.algorithm, run.model.network, run.task, run.population, run.config, run.initial)
    draw = torch.Generator().manual_seed(1)
    params = {
        n: 0.05 * torch.randn(t.shape, generator=draw) if n.endswith(".B") else t for n, t in sim.state.params.items()
    }
    sim.state = replace(sim.state, params=params)
    sim.ledger = sim.assembly.ledger(sim.state)
    sim.server.run_round(0)
    changes = [
        torch.cat([(upload.params[name] - params[name]).flatten() for name in NAMES]).double()
        for upload in sim.uploads.values()
    ]
    shown = {f"o{i:02}": torch.from_numpy(row["image"]).flatten() / 255 for i, row in enumerate(train)}
    layer = run.model.network.module.hidden
    return Victims(
        params,
        (layer.weight.detach(), layer.bias.detach()),
        run.model.network.sites["hidden"].scale,
        changes,
        torch.stack([shown[client] for _, client in sim.uploads]),
    )


@pytest.fixture(scope="module")
def alone() -> Victims:
    return victims()


def test_pictures_are_rebuilt_from_a_bare_upload(alone: Victims) -> None:
    likeness, found = alone.told(lambda change: change)
    print(likeness, found)
    assert found >= 0.99
    assert likeness > 0.9


@pytest.mark.parametrize("told", [Masked, lambda clip: _Noisy(clip, 1.0)], ids=["masked", "noisy"])
def test_masked_upload_and_a_sum_with_noise_rebuild_nothing(told: Any, alone: Victims) -> None:
    """Client-level privacy has z = 1 here, in a round to which a single client came."""
    likeness, found = alone.told(told(median(alone.changes)))
    print(likeness, found)
    assert abs(likeness) < 0.2
    assert found < 0.2


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 8.0])
def test_noise_of_a_site_rebuilds_nothing(epsilon: float) -> None:
    """Example-level privacy of one step."""
    noise = noise_for(epsilon, 1.0, 1, 1e-5)
    privacy = {"adversary": "server", "unit": "example", "clip": 1.0, "noise": noise, "delta": 1e-5, "debug_seed": 0}
    likeness, found = victims(privacy).told(lambda change: change)
    print(epsilon, likeness, found)
    assert abs(likeness) < 0.2
    assert found < 0.2


class _Noisy:
    """A clipped change with the noise of client-level privacy."""

    def __init__(self, clip: float, noise: float) -> None:
        self.clip, self.noise, self.attempt = clip, noise, 0

    def __call__(self, change: Tensor) -> Tensor:
        self.attempt += 1
        return noised(clipped(change, self.clip), self.noise * self.clip, bytes(32), self.attempt)
