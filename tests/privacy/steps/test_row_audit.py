"""An audit of private steps in one training: rows that are in or out by coins."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from audits import Inverse, gaussian, of_epsilons, refuted, right_guesses
from planted import STEPS_BARE, STEPS_HALVED, STEPS_UNCLIPPED, Bug
from rondo.algorithm import Client, Round
from rondo.config import ClientsConfig, TrainConfig
from rondo.data.units import Units
from rondo.engine.client.trainer import CohortTrainer
from rondo.models.networks.network import Network
from rondo.privacy import steps as private_step
from rondo.privacy.accounts.accountant import epsilon
from rondo.privacy.guarantee import Guarantee
from rondo.privacy.steps import PrivateSteps
from rondo.tasks.task import Task
from watched import planted

pytest.importorskip("dp_accounting")

CANARIES, GUESSES, OTHERS, SEED = 2000, 400, 500, int(os.environ.get("AUDIT_SEED", "0"))


_epsilon = functools.cache(epsilon)


@dataclass(frozen=True)
class Row:
    """A row that pulls one weight, by ``pull``."""

    place: int
    pull: float
    cost: int = 1


class Pull(Task):
    primary, precision = "loss", torch.float64
    of = encode = tally = None  # type: ignore[assignment]

    def collate(self, examples: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"place": torch.tensor([e.place for e in examples])}, {"pull": torch.tensor([e.pull for e in examples])}

    def loss(self, output: Tensor, targets: Any) -> tuple[Tensor, Tensor]:
        return -output * targets["pull"], torch.ones(len(output))


class Weights(Network):
    """The weight of each row's place."""

    def __init__(self) -> None:
        self.module, self.initial = nn.Identity(), {}

    def __call__(self, params: Any, base: Any, batch: Any, dropout: Any = None, rows: Any = None) -> Tensor:
        return params["w"][rows.index, batch["place"]]


@dataclass(frozen=True)
class Setting:
    """One training: its steps, noise, and the share of the rows in a step."""

    steps: int
    noise: float
    share: float = 1.0
    persons: bool = False
    """Whether every canary is a person with three rows."""

    def claim(self) -> Inverse:
        if self.share == 1.0:
            return gaussian(self.steps**0.5 / self.noise)
        deltas = (0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-6)
        return of_epsilons({d: _epsilon(self.noise, self.share, self.steps, d) for d in deltas})

    def refuted(self, seed: int = SEED) -> bool:
        """Whether guesses from one training refute the claim."""
        included = np.random.default_rng(seed).random(CANARIES) < 0.5
        canaries = [Row(int(i), 100.0) for i in included.nonzero()[0] for _ in range(3 if self.persons else 1)]
        others = [Row(CANARIES, (-1.0) ** k) for k in range(OTHERS)]  # they pull another weight
        rows: Any = (*canaries, *others)
        if self.persons:
            rows = Units(rows, [k // 3 for k in range(len(canaries))] + [len(canaries) + k for k in range(OTHERS)])
        size = round(self.share * len(rows))
        config = TrainConfig(optimizer="sgd", lr=1.0, max_grad_norm=0.0, batch_size=size, micro_batch=200)
        privacy = Guarantee(adversary="server", unit="example", clip=1.0, noise=self.noise, delta=1e-5, debug_seed=seed)
        trainer = CohortTrainer(
            Weights(), Pull(), (Client("ann", len(rows)),), (rows,), Round(0, 1, 0, 1), config, ClientsConfig(), {},
            promise=privacy,
        )  # fmt: skip
        start = {"w": torch.zeros(1, CANARIES + 1, dtype=torch.float64)}
        moved = trainer.fit(start, steps=self.steps).params["w"][0, :CANARIES].numpy()
        return refuted(self.claim(), CANARIES, GUESSES, right_guesses(moved, included, GUESSES))


SETTINGS = {"whole": Setting(4, 2.0), "sampled": Setting(16, 2.0, 0.5), "persons": Setting(4, 2.0, persons=True)}


@pytest.mark.parametrize("name", ["whole", "persons", pytest.param("sampled", marks=pytest.mark.slow)])
def test_guesses_refute_no_claim(name: str) -> None:
    assert not any(SETTINGS[name].refuted(seed) for seed in (SEED, SEED + 1))


INIT = PrivateSteps.__init__


def _all_rows_in_each_step(self: PrivateSteps, *args: Any) -> None:
    INIT(self, *args)
    self._chance.chosen = lambda population, _: list(range(population))  # type: ignore[method-assign]


ALL_ROWS: Bug = (PrivateSteps, "__init__", _all_rows_in_each_step)
BY_ROW: Bug = (private_step.Units, "of", staticmethod(lambda rows: [[i] for i in range(len(rows))]))


@pytest.mark.parametrize(
    ("bug", "name"),
    [
        pytest.param(STEPS_HALVED, "whole", id="halved"),
        pytest.param(STEPS_BARE, "whole", id="left out"),
        pytest.param(STEPS_UNCLIPPED, "whole", id="unclipped"),
        pytest.param(STEPS_HALVED, "sampled", id="sampled, halved", marks=pytest.mark.slow),
        pytest.param(ALL_ROWS, "sampled", id="sampled, all rows in each step", marks=pytest.mark.slow),
        pytest.param(BY_ROW, "persons", id="rows clipped by themselves"),
    ],
)
def test_planted_fault_is_caught(bug: Bug, name: str) -> None:
    with planted(*bug):
        assert SETTINGS[name].refuted()
