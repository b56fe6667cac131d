"""An audit of client-level privacy in one run of the engine, with 1,000 clients of which 600 are canaries."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import rondo
from audits import epsilon_of_mu, found, least_mu
from canary_clients import coin, direction
from kinds_of_runs import pictures
from rondo.engine.server.rounds import Server
from rondo.params import Params
from rondo.privacy.accounts.accountant import epsilon
from rondo.privacy.mechanism.noise import noised
from rondo.privacy.sums import private_sum
from watched import planted

pytest.importorskip("dp_accounting")
pytestmark = pytest.mark.slow

CLIENTS, ROUNDS, NOISE, DELTA = 1000, 4, 2.0, 1e-4
MU = ROUNDS**0.5 / NOISE
"""Of four looks at one sum, with all clients in each: four rounds of Gaussian noise."""
SEED = int(os.environ.get("AUDIT_SEED", "0"))


def audited(folder: Path) -> tuple[float, np.ndarray, np.ndarray]:
    """The epsilon that the run claims, the canaries' scores in clips, and whether each was in."""
    config = {
        "rounds": ROUNDS,
        "algorithm": {"name": "canary_clients:Canaries", "seed": SEED},
        "model": {"name": "canary_clients:network"},
        "task": {
            "kind": "image-classification",
            "image": "image",
            "image_shape": [5, 5, 1],
            "label": "label",
            "labels": ["0", "1", "2"],
        },
        "data": {"validation_fraction": 0.0},
        "partition": {"kind": "iid", "clients": CLIENTS},
        "clients": {"sampling": "full", "weighting": "uniform"},
        "train": {"what": "all", "optimizer": "sgd", "lr": 0.1, "local_steps": 1, "batch_size": 1},
        "privacy": {
            "adversary": "reader",
            "unit": "client",
            "clip": 1.0,
            "noise": NOISE,
            "delta": DELTA,
            "debug_seed": SEED,
        },
        "evaluation": {"every": 0},
    }
    rows = pictures(CLIENTS + 40)
    models: list[Params] = []
    with pytest.MonkeyPatch.context() as patch:
        original = Server.run_round

        def noted(self: Server, *args: Any) -> dict[str, Any]:
            models.append(self.state.params)
            record = original(self, *args)
            models.append(self.state.params)
            return record

        patch.setattr(Server, "run_round", noted)
        result = rondo.run(config, train=rows[:CLIENTS], test=rows[CLIENTS:], run_dir=folder, device="cpu")
    assert len(models) == 2 * ROUNDS
    start, end = models[0], models[-1]
    moved = torch.cat([(end[n] - start[n]).flatten() for n in sorted(end)]).double() * CLIENTS / ROUNDS
    scores, included = [], []
    for name in json.loads((folder / "partition.json").read_text())["clients"]:
        if (tossed := coin(name, SEED)) is not None:
            canary = direction(name, SEED, end)
            scores.append(float(moved @ torch.cat([canary[n].flatten() for n in sorted(end)]).double()))
            included.append(bool(tossed))
    assert result.summary["privacy"]["epsilon"] is None  # its noise is of a known seed, for this test
    return epsilon(NOISE, 1.0, ROUNDS, DELTA), np.array(scores), np.array(included)


def test_lower_bound_is_below_the_claim_and_near_it(tmp_path: Path) -> None:
    claimed, scores, included = audited(tmp_path / "run")
    assert claimed == pytest.approx(epsilon_of_mu(MU, DELTA), rel=1e-3)
    bound, bold = found(MU, DELTA, scores, included)
    print(f"{len(scores)} canaries, {included.sum()} in: claimed {claimed:.3f}, lower bound {bound:.3f}, by guesses "
          f"{epsilon_of_mu(least_mu(scores, included, len(scores) // 3), DELTA):.3f}; canaries' mean in clips "
          f"{scores[included].mean():.3f} and {scores[~included].mean():.3f}, deviation {scores[~included].std():.3f}, "
          f"epsilon by both {epsilon_of_mu(1 / scores[~included].std(), DELTA):.3f}")  # fmt: skip
    assert 0.5 * claimed < bound <= claimed
    assert not bold


@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("noised", lambda total, deviation, *rest: noised(total, deviation / 2, *rest)),
        ("noised", lambda total, *rest: total),
        ("clipped", lambda change, bound: change),
    ],
    ids=["halved", "left out", "unclipped"],
)
def test_planted_fault_is_caught(name: str, bug: Callable[..., Tensor], tmp_path: Path) -> None:
    with planted(private_sum, name, bug):
        claimed, scores, included = audited(tmp_path / "run")
    bound, bold = found(MU, DELTA, scores, included)
    print(f"claimed {claimed:.3f}, lower bound {bound:.3f}, refuted by guesses: {bold}")
    assert bound > claimed
    assert bold
