"""An audit of the noise of the sites in masked sums, with 600 sites that are all canaries.

The auditor is the strongest that the claim is against: the server, told the noise of `colluding` sites, in sums to
which as many sites as the threshold leaves over have added none. The noise of the others has z clip, and no more.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from audits import epsilon_of_mu, found
from planted import SHARES_HALVED, SHARES_LEFT_OUT, Bug
from rondo.algorithm import Client, Round, ServerState, Upload
from rondo.algorithms import get
from rondo.config import load
from rondo.privacy.masking.integers import NoiseShare, epsilon_of_shares
from rondo.privacy.masking.shares import threshold_of
from rondo.privacy.sums.masked_sum import masked_sum
from watched import noted, planted

pytest.importorskip("dp_accounting")

SITES, COLLUDING, ROUNDS, NOISE, CLIP, DELTA = 600, 200, 4, 1.5, 2.0, 1e-3
HONEST = threshold_of(SITES) - COLLUDING
MU = ROUNDS**0.5 / NOISE
SEED = int(os.environ.get("AUDIT_SEED", "0"))
CLIENTS = [Client(f"c{i:03}", 7) for i in range(SITES)]


def audited(ring: int) -> tuple[float, np.ndarray, np.ndarray]:
    """The epsilon that the sums spend, the canaries' scores in clips, and whether each was in.

    A canary that is in moves one number of its own, by far more than the clip.
    """
    included = np.random.default_rng(SEED).random(SITES) < 0.5
    privacy = {
        "adversary": "server",
        "unit": "client",
        "secure_aggregation": True,
        "ring": ring,
        "clip": CLIP,
        "noise": NOISE,
        "delta": DELTA,
        "colluding": COLLUDING,
        "debug_seed": SEED,
    }
    sections = {"clients": {"weighting": "uniform"}, "task": {"labels": ["a", "b"]}}
    spent: list[str] = []

    def spend(attempt: int, digest: str) -> None:
        spent.append(digest)

    run = masked_sum(load({"privacy": privacy, **sections}, check_paths=False), CLIENTS, lambda attempt, digest: None)
    assert run is not None
    run = replace(run, spend=spend)
    canaries = 1000 * torch.eye(SITES, dtype=torch.float64) * torch.from_numpy(included)
    uploads = [Upload(client, {"a": canaries[i]}, 1.0) for i, client in enumerate(CLIENTS)]
    state, seen = ServerState({"a": torch.zeros(SITES, dtype=torch.float64)}), np.zeros(SITES)
    for k in range(ROUNDS):
        round = Round(k, ROUNDS, SEED, SITES, k)
        with noted(NoiseShare, "drawn") as draws:
            total = run.total(get("fedavg"), state, uploads, round)
        assert len(draws) == SITES
        run.opened(get("fedavg"), state, total, round)
        seen += total.integers.numpy() - np.sum([draw.answer for draw in draws[HONEST:]], axis=0)
    claimed = epsilon_of_shares({(NOISE, 1.0): len(spent)}, len(spent), DELTA)
    return claimed, seen / 2.0**run.points.fraction / CLIP / ROUNDS, included


@pytest.mark.parametrize("ring", [32, pytest.param(64, marks=pytest.mark.slow)])
def test_lower_bound_is_below_the_claim_and_near_it(ring: int) -> None:
    claimed, scores, included = audited(ring)
    assert claimed == pytest.approx(epsilon_of_mu(MU, DELTA), rel=1e-3)
    bound, bold = found(MU, DELTA, scores, included)
    print(f"ring {ring}: {included.sum()} of {SITES} canaries in: claimed {claimed:.3f}, lower bound {bound:.3f}; mean "
          f"in clips {scores[included].mean():.3f} and {scores[~included].mean():.3f}, deviation "
          f"{scores[~included].std():.3f}")  # fmt: skip
    assert 0.5 * claimed < bound <= claimed
    assert not bold


CALLS, DRAWN, DEVIATION, ENCODE = itertools.count(), NoiseShare.drawn, NoiseShare.deviation, NoiseShare.encode
BUGS: dict[str, Bug] = {
    "one site": (NoiseShare, "drawn", lambda self, *args: DRAWN(self, *args) * (next(CALLS) % SITES == 0)),
    "halved": SHARES_HALVED,
    "left out": SHARES_LEFT_OUT,
    "shared by all": (NoiseShare, "deviation", lambda self, threshold: DEVIATION(replace(self, colluding=0), SITES)),
    "five clips": (NoiseShare, "encode", lambda self, change: 5 * ENCODE(self, change)),
}


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
def test_planted_fault_is_caught(bug: str) -> None:
    with planted(*BUGS[bug]):
        claimed, scores, included = audited(32)
    bound, bold = found(MU, DELTA, scores, included)
    print(f"claimed {claimed:.3f}, lower bound {bound:.3f}, refuted by guesses: {bold}")
    assert bound > claimed
    # 1.7 times the claimed mu is too little for the guesses at some seeds.
    assert bold or bug == "shared by all"
