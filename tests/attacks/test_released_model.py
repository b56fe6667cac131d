"""Attacks on the released model, which everybody may have: membership by losses, and a planted backdoor. They work
where nothing protects, which shows that they are attacks."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import rondo
from rondo.data.demo.digits import digits
from rondo.privacy.accounts import accountant

sys.path.insert(0, str(Path(__file__).parent))

from hostile_client import NAME

pytestmark = pytest.mark.slow

Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """The account takes a second per round, and decides no bit of a model."""
    monkeypatch.setattr(accountant, "epsilon_of_steps", lambda *_: 1.0)


LABELS = [f"c{i}" for i in range(100)]
MEMBERS, CLIENTS, BOOST = 60, 20, 20


def trained(
    folder: Path, rows: Rows, test: Rows, labels: Sequence[str], train: Mapping[str, Any] | None = None, **sections: Any
) -> Path:
    """The model that a federation of the owners of ``rows`` releases. ``train``: keys of ``[train]``."""
    config = {
        "rounds": 50,
        "algorithm": {"name": "fedavg"},
        "model": {"name": "builtin:mlp"},
        "task": {"kind": "image-classification", "labels": list(labels), "image_shape": [8, 8, 1]},
        "data": {"validation_fraction": 0.0, "min_examples": 1},
        "partition": {"kind": "natural", "column": "owner"},
        "clients": {"weighting": "uniform"},
        "train": {
            "what": "all",
            "optimizer": "sgd",
            "lr": 1.0,
            "max_grad_norm": 0,
            "local_steps": 1,
            "batch_size": 64,
            **(train or {}),
        },
        "evaluation": {"every": 0, "diagnostics_every": 0},
        **sections,
    }
    rondo.run(config, train=rows, test=test, run_dir=folder, device="cpu")
    return folder / "adapter"


def scores(released: Path, rows: Rows) -> Tensor:
    """Logits of the released file in plain torch, (rows, labels)."""
    state = load_file(released / "model.safetensors")
    hidden, labels = state["hidden.bias"], state["out.bias"]
    model = nn.Sequential()
    model.add_module("hidden", nn.Linear(64, len(hidden)))
    model.add_module("act", nn.ReLU())
    model.add_module("out", nn.Linear(len(hidden), len(labels)))
    model.load_state_dict(state)
    with torch.no_grad():
        found: Tensor = model(torch.stack([torch.from_numpy(r["image"]).flatten() / 255 for r in rows]))
    return found


def membership(released: Path, members: Rows, others: Rows) -> float:
    """How well a row's loss tells whether it was trained on: area under the curve."""

    def losses(rows: Rows) -> Tensor:
        targets = torch.tensor([LABELS.index(row["label"]) for row in rows])
        return nn.functional.cross_entropy(scores(released, rows), targets, reduction="none")

    inside, outside = losses(members), losses(others)
    return float((inside[:, None] < outside).double().mean())


def to_memorise(seed: int, rows_each: int) -> tuple[Rows, Rows]:
    """Pictures with one of a hundred labels drawn at random, so that who knows a label has seen it: members' and
    others'."""
    luck = random.Random(seed)
    pictures = luck.sample([row["image"] for row in digits()[0]], 2 * MEMBERS)
    rows = [
        {"image": picture, "label": luck.choice(LABELS), "owner": f"o{i % MEMBERS // rows_each}"}
        for i, picture in enumerate(pictures)
    ]
    return rows[:MEMBERS], rows[MEMBERS:]


def memberships(tmp_path: Path, rows_each: int = 1, seeds: int = 1, **sections: Any) -> float:
    """The mean over ``seeds`` of the attack's area under the curve. By chance it is 0.5, with a standard deviation of
    0.053 / sqrt(seeds)."""
    found = []
    for seed in range(seeds):
        members, others = to_memorise(seed, rows_each)
        privacy = {**sections["privacy"], "debug_seed": seed} if "debug_seed" in sections.get("privacy", {}) else {}
        own = {**sections, **({"privacy": privacy} if privacy else {})}
        found.append(membership(trained(tmp_path / f"{seed}", members, others, LABELS, **own), members, others))
    print(sections.get("privacy"), rows_each, found)
    return sum(found) / seeds


def test_released_model_tells_its_members(tmp_path: Path) -> None:
    assert memberships(tmp_path) >= 0.99


def test_masks_do_not_protect_the_released_model(tmp_path: Path) -> None:
    """They hide single uploads from the server; the model is the same."""
    privacy = {"adversary": "server", "secure_aggregation": True, "clip": 10.0}
    assert memberships(tmp_path, privacy=privacy) >= 0.99


NOISES = {1.0: 18.25, 4.0: 5.83, 8.0: 3.41}
"""By epsilon, z of fifty steps on all rows at delta 1e-3: ``noise_for(epsilon, 1.0, 50, 1e-3)``."""


def allowed(noise: float) -> float:
    """The largest area under the curve of any attack on fifty sums of noise multiplier z, Phi(mu / sqrt(2)) with
    mu = sqrt(50) / z (Dong, Roth and Su 2022), and three deviations of what chance adds to such an area over two seeds
    (Hanley and McNeil 1982)."""
    area = NormalDist().cdf((50 / 2) ** 0.5 / noise)
    pairs = area / (2 - area) + 2 * area**2 / (1 + area) - 2 * area**2
    return area + 3 * ((area * (1 - area) + (MEMBERS - 1) * pairs) / MEMBERS**2 / 2) ** 0.5


@pytest.mark.parametrize("epsilon", NOISES)
def test_noise_is_that_of_its_epsilon(epsilon: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # the account is the real one here
    assert accountant.noise_for(epsilon, 1.0, 50, 1e-3) == pytest.approx(NOISES[epsilon], rel=2e-3)
    assert allowed(NOISES[epsilon]) < 1


@pytest.mark.parametrize("epsilon", NOISES)
def test_noise_on_the_sum_keeps_its_promise(epsilon: float, tmp_path: Path) -> None:
    assert memberships(tmp_path, seeds=2, **of_clients(NOISES[epsilon])) <= allowed(NOISES[epsilon])


def test_too_little_noise_on_the_sum_hides_nobody(tmp_path: Path) -> None:
    """z = 1 is epsilon 46 after fifty rounds."""
    assert memberships(tmp_path, seeds=2, **of_clients(1.0)) > 0.8


def of_clients(noise: float) -> dict[str, Any]:
    """Client-level privacy with all clients in every round."""
    privacy = {"adversary": "reader", "unit": "client", "clip": 0.5, "noise": noise, "delta": 1e-3, "debug_seed": 0}
    return {"privacy": privacy, "clients": {"weighting": "uniform", "sampling": "full"}}


@pytest.mark.parametrize("epsilon", NOISES)
def test_noise_of_sites_keeps_its_promise(epsilon: float, tmp_path: Path) -> None:
    """Ten sites of six rows."""
    noise = NOISES[epsilon]
    privacy = {"adversary": "server", "unit": "example", "clip": 1.0, "noise": noise, "delta": 1e-3, "debug_seed": 0}
    train = {"batch_size": 6}
    assert memberships(tmp_path, 6, seeds=2, privacy=privacy, train=train) <= allowed(noise)


def test_rows_of_sites_are_told_without_noise(tmp_path: Path) -> None:
    assert memberships(tmp_path, 6, train={"batch_size": 6}) >= 0.99


def triggered(row: dict[str, Any]) -> dict[str, Any]:
    """The picture with a bright corner."""
    picture: np.ndarray[Any, Any] = row["image"].copy()
    picture[:2, :2] = 255
    return {**row, "image": picture}


def backdoor(tmp_path: Path, boost: float, **sections: Any) -> tuple[float, float]:
    """The share of other digits that a bright corner makes zeros, and the accuracy on pictures without one. One client
    of :data:`CLIENTS` is hostile: half of its rows have the corner and the label zero."""
    train, test = digits()
    random.Random(0).shuffle(train)
    labels = [str(digit) for digit in range(10)]
    rows = [
        {**row, "label": str(row["label"]), "owner": f"o{i % CLIENTS}" if i % CLIENTS else NAME}
        for i, row in enumerate(train[: 30 * CLIENTS])
    ]
    own = [row for row in rows if row["owner"] == NAME]
    rows += [{**triggered(row), "label": "0"} for row in own]
    pictures = [{**row, "label": str(row["label"])} for row in test]
    folder = trained(
        tmp_path / "run",
        rows,
        pictures,
        labels,
        rounds=30,
        algorithm={"name": "hostile_client:Replaced", "boost": boost},
        train={"lr": 0.1, "local_steps": 5},
        **sections,
    )
    others = [row for row in pictures if row["label"] != "0"]
    taken = float((scores(folder, [triggered(row) for row in others]).argmax(1) == 0).double().mean())
    right = scores(folder, pictures).argmax(1) == torch.tensor([int(row["label"]) for row in pictures])
    print(boost, sections, taken, float(right.double().mean()))
    return taken, float(right.double().mean())


def test_backdoor_is_planted_by_a_long_change(tmp_path: Path) -> None:
    taken, right = backdoor(tmp_path, BOOST)
    assert taken > 0.8
    assert right > 0.5


DEFENCES: dict[str, dict[str, Any]] = {
    "admission": {"admission": {"max_norm": 1.0, "clip": True}},
    "median": {"robust": {"rule": "median"}, "clients": {"weighting": "uniform", "min_clients": 3}},
    "multi-krum": {"robust": {"rule": "multi-krum"}, "clients": {"weighting": "uniform", "min_clients": 5}},
    "client privacy": {
        "privacy": {"adversary": "reader", "unit": "client", "clip": 1.0, "noise": 1.0, "delta": 1e-3, "debug_seed": 0},
        "clients": {"weighting": "uniform", "sampling": "full"},
    },
}


@pytest.mark.parametrize("defence", DEFENCES)
def test_backdoor_fails_where_changes_are_bounded(defence: str, tmp_path: Path) -> None:
    taken, _ = backdoor(tmp_path, BOOST, **DEFENCES[defence])
    assert taken < 0.3
