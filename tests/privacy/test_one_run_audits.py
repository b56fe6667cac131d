"""Audits in one run: canaries are in or out by coins, and what is guessed of them bounds epsilon from below.

Three settings of each unit are audited as they are, and with each planted bug that its unit can have. Clients and sites
have no rows, so masks by place and a split by the seed are bugs of rows and persons alone. The noise of a sum follows
from the sum, so a reader that knows its key still has to guess the sum first.
Sources: Steinke, Nasr and Jagielski 2023 ("Privacy Auditing with One (1) Training Run"), theorem 5.2; for Gaussian
noise also the rates of canaries by themselves, as in Andrew et al. 2024.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from audits import epsilon_of_mu, least_mu_at, right_guesses, steinke
from rondo.algorithm import Client, Round, ServerState, Upload
from rondo.algorithms import get
from rondo.config import ClientsConfig, TrainConfig, load
from rondo.config.schema import PrivacyConfig, RunConfig
from rondo.data.population import _split
from rondo.data.units import Units
from rondo.engine.client.trainer import CohortTrainer
from rondo.models.networks.network import Network
from rondo.privacy.accounts.account import Account
from rondo.privacy.accounts.accountant import epsilon
from rondo.privacy.masking.noise_share import NoiseShare
from rondo.privacy.masking.shares import threshold_of
from rondo.privacy.mechanism.noise import noised
from rondo.privacy.steps import private_step
from rondo.privacy.steps.private_step import PrivateSteps, add_noise
from rondo.privacy.sums import private_sum
from rondo.privacy.sums.masked_sum import masked_sum
from rondo.privacy.sums.private_sum import PrivateSum
from rondo.tasks.task import Task

pytest.importorskip("dp_accounting")
pytestmark = pytest.mark.slow

CANARIES, OTHERS, DELTA, SEED = 1000, 40, 1e-5, 1
Bug = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Setting:
    """``rounds`` of noise multiplier ``noise`` in which a unit is with probability ``share``."""

    rounds: int
    noise: float
    share: float = 1.0

    def claim(self, noise: float | None = None) -> float:
        return epsilon(self.noise if noise is None else noise, self.share, self.rounds, DELTA)


# --- rows and persons: a canary at each of many clients -------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A row that pulls one weight of the body, and the head's."""

    place: int
    number: int
    cost: int = 1


class Pull(Task):
    primary, precision = "loss", torch.float64
    of = encode = tally = None  # type: ignore[assignment]

    def collate(self, examples: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return {"place": torch.tensor([e.place for e in examples])}, {}

    def loss(self, output: Tensor, targets: Any) -> tuple[Tensor, Tensor]:
        return -output, torch.ones(len(output))

    def digest(self, examples: Any) -> str:
        return str([example.number for example in examples])


@dataclass
class Weights(Network):
    """The weight of each row's place, and the head's, with dropout of a half."""

    drops: bool

    def __post_init__(self) -> None:
        self.module, self.initial = nn.Identity(), {}

    def __call__(self, params: Any, base: Any, batch: Any, dropout: Any = None, rows: Any = None) -> Tensor:
        output = params["w"][rows.index, batch["place"]] + params["head:w"][rows.index, 0]
        if self.drops:
            output = output * torch.stack([2.0 * (torch.rand((), generator=g) < 0.5) for g in dropout])
        return output


@dataclass(frozen=True)
class Rows:
    """A client whose canary is one row, or a person with three."""

    setting: Setting
    persons: bool = False
    drops: bool = False
    held_back: bool = False

    def moved(self, client: int, included: bool, noise: float, secret: int, by_row: bool = True) -> np.ndarray:
        """The sum of the client's clipped gradients, in clips: of the weights and of the head."""
        copies = 3 if self.persons else 1
        rows: list[Row] = [Row(0, 0)] * (copies * included) + [Row(1 + k, 1 + k) for k in range(OTHERS)]
        if self.held_back:
            config = RunConfig().model_copy(update={"data": RunConfig().data.model_copy(update=HELD_BACK)})
            names = [f"{client} {row.number}" for row in rows] if by_row else None
            kept, _ = _split(str(client), [range(i, i + 1) for i in range(len(rows))], config, ROUND, names)
            rows = [rows[i] for i in sorted(kept)]
        expected = max(1, round(self.setting.share * len(rows)))
        train = TrainConfig(optimizer="sgd", lr=float(expected), max_grad_norm=0.0, batch_size=expected)
        privacy = PrivacyConfig(
            adversary="server", unit="example", clip=1.0, noise=noise, delta=DELTA, debug_seed=2**20 * secret + client
        )
        units: Any = Units(rows, [row.number for row in rows]) if self.persons else tuple(rows)
        trainer = CohortTrainer(
            Weights(self.drops), Pull(), (Client(str(client), len(rows)),), (units,), ROUND, train, ClientsConfig(),
            {}, privacy=privacy,
        )  # fmt: skip
        start = {"w": torch.zeros(1, OTHERS + 1).double(), "head:w": torch.zeros(1, 1).double()}
        end = trainer.fit(start, steps=self.setting.rounds).params
        return np.concatenate([end["w"][0].numpy(), end["head:w"][0].numpy()])

    def bound(
        self, *, looks_at: slice = slice(None), knows: int = 2, silent: bool = True, by_row: bool = True
    ) -> float:
        """The bound by an auditor that knows all rows but the canary, and tries both worlds for each client.

        ``looks_at``: the numbers that it looks at.
        ``knows``: the seed of the secrets that it tries the worlds with; 1 is the one that was used.
        ``silent``: whether it tries them without noise.
        """
        included = np.random.default_rng(SEED).random(CANARIES) < 0.5
        scores, noise = np.empty(CANARIES), 0.0 if silent else self.setting.noise
        for k, is_in in enumerate(included):
            seen = self.moved(k, bool(is_in), self.setting.noise, 1, by_row)[looks_at]
            with_it, without = (self.moved(k, world, noise, knows, by_row)[looks_at] for world in (True, False))
            toward = with_it - without
            scores[k] = (seen - (with_it + without) / 2) @ toward / max(float(np.linalg.norm(toward)), 1e-12)
        return bound(scores, included)


HELD_BACK = {"validation_fraction": 0.3}
ROUND = Round(0, 1, 0, 1)
OF_ROWS = [Setting(1, 2.0), Setting(4, 3.0), Setting(8, 1.5, 0.25)]


def bound(scores: np.ndarray, included: np.ndarray) -> float:
    """The largest bound of few guesses, of many, and of the rates above a threshold, which hold together at 95 %."""
    by_guesses = (
        steinke(len(scores), guesses, right_guesses(scores, included, guesses), DELTA, 0.05 / 3)
        for guesses in (len(scores) // 10, len(scores) // 2)
    )
    mu = least_mu_at(float(np.median(scores)), scores, included, 0.05 / 3)
    return max(*by_guesses, epsilon_of_mu(mu, DELTA) if mu > 0 else 0.0)


@pytest.mark.parametrize("persons", [False, True], ids=["rows", "persons"])
@pytest.mark.parametrize("setting", OF_ROWS, ids=str)
def test_bound_of_rows_is_below_the_claim(setting: Setting, persons: bool) -> None:
    found = Rows(setting, persons).bound()
    print(f"claimed {setting.claim():.2f}, bound {found:.2f}")
    assert found <= setting.claim()
    assert found > 0.1 * setting.claim() or setting.share < 1  # the audit sees something at all


@pytest.mark.parametrize("persons", [False, True], ids=["rows", "persons"])
def test_bound_with_masks_and_held_back_rows_is_below_the_claim(persons: bool) -> None:
    setting = OF_ROWS[0]
    assert Rows(setting, persons, drops=True, held_back=True).bound() <= setting.claim()


def _halved(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(private_step, "add_noise", lambda sums, deviation, *rest: add_noise(sums, deviation / 2, *rest))


def _bare_head(patch: pytest.MonkeyPatch) -> None:
    def bare(sums: Any, deviation: float, *rest: Any) -> Mapping[str, Tensor]:
        return {**add_noise(sums, deviation, *rest), "head:w": add_noise(sums, 0.0, *rest)["head:w"]}

    patch.setattr(private_step, "add_noise", bare)


def _by_place(patch: pytest.MonkeyPatch) -> None:
    def seed(steps: PrivateSteps, step: int, row: Any) -> int:
        return [other is row for other in steps._rows].index(True)

    patch.setattr(PrivateSteps, "_seed", seed)


def _sound(patch: pytest.MonkeyPatch) -> None:
    """The fault is in the claim, or in what the auditor knows."""


@pytest.mark.parametrize("persons", [False, True], ids=["rows", "persons"])
@pytest.mark.parametrize(
    ("bug", "rows", "looks", "claimed_at"),
    [
        pytest.param(_halved, {}, {}, None, id="half the noise"),
        pytest.param(_bare_head, {}, {"looks_at": slice(-1, None)}, None, id="no noise on the head"),
        pytest.param(_by_place, {"drops": True}, {}, None, id="masks by place"),
        pytest.param(_sound, {"held_back": True}, {"by_row": False}, None, id="split by seed"),
        pytest.param(_sound, {}, {}, 40.0, id="account at new noise"),
        pytest.param(_sound, {}, {"knows": 1, "silent": False}, None, id="known noise"),
    ],
)
def test_planted_bug_of_rows_is_above_the_claim(
    bug: Bug, rows: Any, looks: Any, claimed_at: float | None, persons: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    setting = Setting(4, 4.0)
    found = Rows(setting, persons, **rows).bound(**looks)
    print(f"claimed {setting.claim(claimed_at):.2f}, bound {found:.2f}")
    assert found > setting.claim(claimed_at)


# --- clients, and noise of sites: every client is a canary -----------------------------------------------------------


def of_clients(setting: Setting) -> tuple[np.ndarray, np.ndarray]:
    """Scores in clips, and whether each client was in. A canary moves a weight of its own, the last tenth of them the
    head's."""
    included = np.random.default_rng(SEED).random(CANARIES) < 0.5
    run = PrivateSum(_config(setting), CANARIES, bytes(range(32)), Account(lambda lines: None))
    scores = np.zeros(CANARIES)
    for k in range(setting.rounds):
        scores += _opened(run, included, Round(k, setting.rounds, SEED, CANARIES, k)) * CANARIES
    return scores / setting.rounds, included


def of_sites(setting: Setting, known: int = threshold_of(CANARIES) - 200) -> tuple[np.ndarray, np.ndarray]:
    """The same of masked sums, by the server with the sites that collude and those that the threshold leaves over: it
    knows the noise of all sites from ``known`` on."""
    included = np.random.default_rng(SEED).random(CANARIES) < 0.5
    run = masked_sum(_config(setting, sites=True), CLIENTS, lambda attempt, digest: None)
    assert run is not None
    seen = np.zeros(CANARIES)
    for k in range(setting.rounds):
        drawn: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            draw = NoiseShare.drawn
            patch.setattr(NoiseShare, "drawn", lambda *args: drawn.append(draw(*args)) or drawn[-1])  # noqa: B023
            round = Round(k, setting.rounds, SEED, CANARIES, k)
            total = run.total(get("fedavg"), STATE, _uploads(included), round)
        seen += total.integers.numpy() - np.sum(drawn[known:], axis=0)
    return seen / 2.0**run.points.fraction / setting.rounds, included


CLIENTS = [Client(f"c{i:04}", 7) for i in range(CANARIES)]
STATE = ServerState({"a": torch.zeros(CANARIES, dtype=torch.float64)})
UNITS: Mapping[str, Callable[..., tuple[np.ndarray, np.ndarray]]] = {"clients": of_clients, "sites": of_sites}
OF_SUMS = [Setting(1, 2.0), Setting(4, 3.0), Setting(9, 1.5)]


def _uploads(included: np.ndarray) -> list[Upload]:
    canaries = 1000 * torch.eye(CANARIES, dtype=torch.float64)
    return [Upload(c, {"a": canaries[i] * bool(included[i])}, 1.0) for i, c in enumerate(CLIENTS)]


def _opened(run: PrivateSum, included: np.ndarray, round: Round) -> np.ndarray:
    total = run.total(get("fedavg"), STATE, _uploads(included), round)
    new: np.ndarray = run.opened(get("fedavg"), STATE, total, round).params["a"].numpy()
    return new


@functools.cache
def _config(setting: Setting, sites: bool = False) -> RunConfig:
    privacy: dict[str, Any] = {"unit": "client", "clip": 1.0, "noise": setting.noise, "delta": DELTA / 2}
    privacy |= (
        {"adversary": "server", "secure_aggregation": True, "colluding": 200, "debug_seed": SEED}
        if sites
        else {"adversary": "reader"}
    )
    clients = {"weighting": "uniform", "sampling": "full"}
    return load({"privacy": privacy, "clients": clients, "task": {"labels": ["a", "b"]}}, check_paths=False)


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("setting", OF_SUMS, ids=str)
def test_bound_of_sums_is_below_the_claim(setting: Setting, unit: str) -> None:
    found = bound(*UNITS[unit](setting))
    print(f"claimed {setting.claim():.2f}, bound {found:.2f}")
    assert 0.1 * setting.claim() < found <= setting.claim()


def _halved_sum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(private_sum, "noised", lambda total, deviation, *rest: noised(total, deviation / 2, *rest))


def _bare_head_of_sum(patch: pytest.MonkeyPatch) -> None:
    def bare(total: Tensor, *rest: Any) -> Tensor:
        return torch.cat([noised(total, *rest)[: -CANARIES // 10], total[-CANARIES // 10 :]])

    patch.setattr(private_sum, "noised", bare)


def _halved_share(patch: pytest.MonkeyPatch) -> None:
    deviation = NoiseShare.deviation
    patch.setattr(NoiseShare, "deviation", lambda self, threshold: deviation(self, threshold) // 2)


@pytest.mark.parametrize(
    ("unit", "bug", "looks_at", "known", "claimed_at"),
    [
        pytest.param("clients", _halved_sum, 0, {}, None, id="clients, half the noise"),
        pytest.param("clients", _bare_head_of_sum, -CANARIES // 10, {}, None, id="clients, no noise on the head"),
        pytest.param("clients", _sound, 0, {}, 40.0, id="clients, account at new noise"),
        pytest.param("sites", _halved_share, 0, {}, None, id="sites, half the noise"),
        pytest.param("sites", _sound, 0, {}, 40.0, id="sites, account at new noise"),
        pytest.param("sites", _sound, 0, {"known": 0}, None, id="sites, known noise"),
    ],
)
def test_planted_bug_of_sums_is_above_the_claim(
    unit: str, bug: Bug, looks_at: int, known: Any, claimed_at: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    setting = Setting(4, 4.0)
    scores, included = UNITS[unit](setting, **known)
    found = bound(scores[looks_at:], included[looks_at:])
    print(f"claimed {setting.claim(claimed_at):.2f}, bound {found:.2f}")
    assert found > setting.claim(claimed_at)
