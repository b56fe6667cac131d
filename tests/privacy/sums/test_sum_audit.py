"""An audit of the private sum from an upload to the published state: a canary at the clip's norm is in or out."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from audits import least_mu_at
from rondo.algorithm import Client, Round, ServerState, Upload
from rondo.algorithms import get
from rondo.config import load
from rondo.privacy.accounts.account import Account
from rondo.privacy.mechanism.clip import clipped
from rondo.privacy.mechanism.noise import noised
from rondo.privacy.sums import private_sum as module
from rondo.privacy.sums.private_sum import PrivateSum
from watched import planted

pytest.importorskip("dp_accounting")

CLIP, NOISE, HALF, CLIENTS = 2.0, 1.5, 50, 10
STATE = ServerState({name: torch.ones(HALF) for name in "ab"})
STEP = torch.full((HALF,), 1 / math.sqrt(2 * HALF))
"""A tensor of a change of norm 1."""


def scores(trials: int, norm: float, weight: float) -> tuple[np.ndarray, np.ndarray]:
    """The published change along the canary, in clips, of as many rounds with it as without."""
    privacy = {"adversary": "reader", "unit": "client", "clip": CLIP, "noise": NOISE, "delta": 1e-3}
    raw = {"privacy": privacy, "clients": {"weighting": "uniform", "sampling": "full"}, "task": {"labels": ["a", "b"]}}
    algorithm, private = (
        get("fedavg"),
        PrivateSum(load(raw, check_paths=False), CLIENTS, bytes(range(32)), Account(lambda lines: None)),
    )
    canary = Upload(Client("canary", 7), {n: t + norm * STEP for n, t in STATE.params.items()}, weight)
    other = Upload(Client("other", 7), {n: t - 0.3 for n, t in STATE.params.items()}, 1.0)
    included = np.arange(2 * trials) % 2 == 1
    found = np.empty(2 * trials)
    for attempt, is_in in enumerate(included):
        round = Round(0, 1, 0, CLIENTS, attempt)
        total = private.total(algorithm, STATE, [other, canary] if is_in else [other], round)
        new = private.opened(algorithm, STATE, total, round)
        found[attempt] = sum(float((new.params[n] - STATE.params[n]) @ STEP) for n in "ab") * CLIENTS / CLIP
    return found - found[~included].mean(), included


@pytest.mark.slow
@pytest.mark.parametrize("trials", [2_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_canary_is_told_as_well_as_claimed_and_no_better(trials: int) -> None:
    """The bound from below nearly reaches the claim, so the audit would see half the noise or twice the clip."""
    found, included = scores(trials, CLIP, 1.0)
    assert least_mu_at(0.5, found, included, level=0.001) <= 1 / NOISE
    assert least_mu_at(0.5, found, included, level=0.05) >= {2_000: 0.8, 20_000: 0.9}[trials] / NOISE


def _halved(total: Tensor, deviation: float, key: bytes, attempt: int) -> Tensor:
    return noised(total, deviation / 2, key, attempt)


def _per_tensor(change: Tensor, bound: float) -> Tensor:
    return torch.cat([clipped(change[:HALF], bound), clipped(change[HALF:], bound)])


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    ("name", "bug"),
    [
        ("noised", _halved),
        ("noised", lambda total, *_: total),
        ("clipped", lambda change, bound: change),
        ("clipped", _per_tensor),
    ],
    ids=["noise halved", "noise left out", "clip left out", "clip per tensor"],
)
def test_planted_bug_is_told(name: str, bug: Callable[..., Tensor]) -> None:
    with planted(module, name, bug):
        assert least_mu_at(0.5, *scores(2_000, 10 * CLIP, 1.0), level=0.001) > 1 / NOISE


@pytest.mark.slow
def test_larger_weight_is_no_larger_signal() -> None:
    assert least_mu_at(0.5, *scores(2_000, 10 * CLIP, 9.0), level=0.001) <= 1 / NOISE
