"""Audits in one run: canaries are in or out by coins, and what is guessed of them bounds epsilon from below.

Three settings of each unit are audited as they are, and with each planted bug that its unit can have. Clients and sites
have no rows, so masks by place and a split by the seed are bugs of rows and persons alone. The server knows which sites
took part, so no setting of sites has a share. The noise of a server follows from the sum, so one that is known is found
by an auditor that knows all of a sum but one canary.
Sources: Steinke, Nasr and Jagielski 2023 ("Privacy Auditing with One (1) Training Run"), theorem 5.2; where nothing is
sampled, and the noise is Gaussian, also the rates of canaries by themselves, as in Andrew et al. 2024.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from audits import epsilon_of_mu, least_mu_at, right_guesses, steinke
from planted import SHARES_HALVED, STEPS_HALVED, Bug
from rondo.algorithm import Client, Round, ServerState, Upload
from rondo.algorithms import get
from rondo.config import ClientsConfig, TrainConfig, load
from rondo.config.schema import RunConfig
from rondo.data.population import _split
from rondo.data.units import Units
from rondo.engine.client.trainer import CohortTrainer
from rondo.models.networks.network import Network
from rondo.privacy import steps as private_step
from rondo.privacy.accounts.account import Account, Entry
from rondo.privacy.accounts.accountant import epsilon_of_steps
from rondo.privacy.guarantee import Guarantee
from rondo.privacy.masking.integers import NoiseShare
from rondo.privacy.masking.shares import threshold_of
from rondo.privacy.mechanism.noise import noised
from rondo.privacy.steps import PrivateSteps, add_noise
from rondo.privacy.sums import private_sum
from rondo.privacy.sums.masked_sum import masked_sum
from rondo.privacy.sums.private_sum import PrivateSum
from rondo.tasks.task import Task
from watched import noted, planted

pytest.importorskip("dp_accounting")
pytestmark = pytest.mark.slow

CANARIES, OTHERS, DELTA, SEED = 1000, 40, 1e-5, 1
INCLUDED = np.random.default_rng(SEED).random(CANARIES) < 0.5


@dataclass(frozen=True)
class Setting:
    """``rounds`` of noise multiplier ``noise`` in which a unit is with probability ``share``."""

    rounds: int
    noise: float
    share: float = 1.0

    def claim(self) -> float:
        """Epsilon by an account of the rounds."""
        account, entry = Account(lambda lines: None), Entry(self.noise, 1.0, DELTA, True, sampled=self.share)
        for k in range(self.rounds):
            account.spend(replace(entry, attempt=k, sum=f"sum {k}"))
        return epsilon_of_steps(account.steps[""], DELTA)

    def bound(self, scores: np.ndarray, included: np.ndarray) -> float:
        """The largest bound of few guesses, of many, and of the rates above a threshold, which hold together at 95 %.
        The rates bound epsilon of Gaussian noise alone, so with a share they count as nothing."""
        by_guesses = (
            steinke(len(scores), guesses, right_guesses(scores, included, guesses), DELTA, 0.05 / 3)
            for guesses in (len(scores) // 10, len(scores) // 2)
        )
        mu = least_mu_at(float(np.median(scores)), scores, included, 0.05 / 3)
        return max(*by_guesses, epsilon_of_mu(mu, DELTA) if mu > 0 and self.share == 1 else 0.0)


# --- rows and persons: a canary at each of many clients -------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A row that pulls one weight of the body; the canary, of place 0, pulls the head's too."""

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
        output = params["w"][rows.index, batch["place"]] + params["head:w"][rows.index, 0] * (batch["place"] == 0)
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

    by_row: bool = True
    """Whether each row's part is decided by the row alone, and not by a permutation."""

    def moved(self, client: int, included: bool, noise: float, secret: int) -> np.ndarray:
        """The sum of the client's clipped gradients, in clips: of the weights and of the head. Without noise all rows
        are in each step."""
        copies = 3 if self.persons else 1
        rows: list[Row] = [Row(0, 0)] * (copies * included) + [Row(1 + k, 1 + k) for k in range(OTHERS)]
        if self.held_back:
            names = [f"{client} {row.number}" for row in rows] if self.by_row else None
            generator = ROUND.generator("split", str(client))
            kept, _ = _split([range(i, i + 1) for i in range(len(rows))], HELD_BACK, generator, names)
            rows = [rows[i] for i in sorted(kept)]
        expected = max(1, int((self.setting.share if noise else 1.0) * len(rows)))
        train = TrainConfig(optimizer="sgd", lr=float(expected), max_grad_norm=0.0, batch_size=expected)
        privacy = Guarantee(
            adversary="server", unit="example", clip=1.0, noise=noise, delta=DELTA, debug_seed=2**20 * secret + client
        )
        units: Any = Units(rows, [row.number for row in rows]) if self.persons else tuple(rows)
        trainer = CohortTrainer(
            Weights(self.drops), Pull(), (Client(str(client), len(rows)),), (units,), ROUND, train, ClientsConfig(),
            {}, promise=privacy,
        )  # fmt: skip
        start = {"w": torch.zeros(1, OTHERS + 1).double(), "head:w": torch.zeros(1, 1).double()}
        end = trainer.fit(start, steps=self.setting.rounds).params
        return np.concatenate([end["w"][0].numpy(), end["head:w"][0].numpy()])

    def bound(self, looks_at: slice = slice(None), known: bool = False) -> float:
        """The bound by an auditor that knows all rows but the canary, and tries both worlds of each client.

        ``looks_at``: the numbers that it looks at.
        ``known``: whether it tries them with the secrets that were used, and not without noise.
        """
        noise, secret = (self.setting.noise, 1) if known else (0.0, 2)
        world = functools.cache(lambda client, included: self.moved(client, included, noise, secret)[looks_at])
        scores = np.empty(CANARIES)
        for k, is_in in enumerate(INCLUDED):
            seen = self.moved(k, bool(is_in), self.setting.noise, 1)[looks_at]
            client = k if known or self.held_back else 0  # without secrets and a split, the worlds of all are the same
            with_it, without = world(client, True), world(client, False)
            toward = with_it - without
            scores[k] = (seen - (with_it + without) / 2) @ toward / max(float(np.linalg.norm(toward)), 1e-12)
        return self.setting.bound(scores, INCLUDED)


HELD_BACK = 0.3
ROUND = Round(0, 1, 0, 1)
OF_ROWS = [Setting(1, 2.0), Setting(4, 3.0), Setting(8, 0.7, 0.5)]
BUGGY = Setting(4, 4.0)


@pytest.mark.parametrize("persons", [False, True], ids=["rows", "persons"])
@pytest.mark.parametrize("setting", OF_ROWS, ids=str)
def test_bound_of_rows_is_below_the_claim(setting: Setting, persons: bool) -> None:
    found = Rows(setting, persons).bound()
    print(f"claimed {setting.claim():.2f}, bound {found:.2f}")
    assert 0.1 * setting.claim() < found <= setting.claim()


@pytest.mark.parametrize("persons", [False, True], ids=["rows", "persons"])
def test_bound_with_masks_and_held_back_rows_is_below_the_claim(persons: bool) -> None:
    setting = OF_ROWS[0]
    assert Rows(setting, persons, drops=True, held_back=True).bound() <= setting.claim()


def _bare_head(sums: Any, deviation: float, *rest: Any) -> Mapping[str, Tensor]:
    return {**add_noise(sums, deviation, *rest), "head:w": add_noise(sums, 0.0, *rest)["head:w"]}


def _by_place(steps: PrivateSteps, step: int, row: Any) -> int:
    return [other is row for other in steps._rows].index(True)


COUNT = Account.count
BARE_HEAD_OF_STEPS: Bug = (private_step, "add_noise", _bare_head)
PRICED_ANEW: Bug = (Account, "count", lambda self, entry: COUNT(self, replace(entry, noise=40.0)))
SOUND: Bug = (private_step, "add_noise", add_noise)
"""The fault is in what the auditor knows, or in what the rows are split by."""


@pytest.mark.parametrize("persons", [False, True], ids=["rows", "persons"])
@pytest.mark.parametrize(
    ("bug", "rows", "looks"),
    [
        pytest.param(STEPS_HALVED, {}, {}, id="half the noise"),
        pytest.param(BARE_HEAD_OF_STEPS, {}, {"looks_at": slice(-1, None)}, id="no noise on the head"),
        pytest.param((PrivateSteps, "_seed", _by_place), {"drops": True}, {}, id="masks by place"),
        pytest.param(SOUND, {"held_back": True, "by_row": False}, {}, id="split by seed"),
        pytest.param(PRICED_ANEW, {}, {}, id="account at new noise"),
        pytest.param(SOUND, {}, {"known": True}, id="known noise"),
    ],
)
def test_planted_bug_of_rows_is_above_the_claim(bug: Bug, rows: Any, looks: Any, persons: bool) -> None:
    with planted(*bug):
        found, claimed = Rows(BUGGY, persons, **rows).bound(**looks), BUGGY.claim()
    print(f"claimed {claimed:.2f}, bound {found:.2f}")
    assert found > claimed


# --- clients, and noise of sites: every client is a canary -----------------------------------------------------------


def of_clients(setting: Setting) -> np.ndarray:
    """A score of each client. A canary moves a weight of its own, the last tenth of them the head's."""
    run = PrivateSum(_config(setting), CANARIES, bytes(range(32)), Account(lambda lines: None))
    rounds = [Round(k, setting.rounds, SEED, CANARIES, k) for k in range(setting.rounds)]
    return sum((_opened(run, _uploads(run.sample(CLIENTS, round)), round) for round in rounds), np.zeros(CANARIES))


def of_clients_by_the_key(setting: Setting) -> np.ndarray:
    """The same of a sum for each canary, by a reader that knows the key of the noise, and all but that canary."""
    run, scores = PrivateSum(_config(setting), CANARIES, bytes(range(32)), Account(lambda lines: None)), []
    for k, (client, is_in) in enumerate(zip(CLIENTS, INCLUDED, strict=True)):
        round = Round(0, 1, SEED, CANARIES, k)
        canary = Upload(client, {"a": torch.tensor([1000.0]).double()}, 1.0)
        without, with_it = (_opened(run, uploads, round, STATE[:1]) for uploads in ([], [canary]))
        seen = with_it if is_in else without
        scores.append(float((seen - (with_it + without) / 2) @ (with_it - without)))
    return np.array(scores)


def of_sites(setting: Setting, known: int = threshold_of(CANARIES) - 200) -> np.ndarray:
    """The same of masked sums, by the server with the sites that collude and those that the threshold leaves over: it
    knows the noise of all sites from ``known`` on."""
    run = masked_sum(_config(setting, sites=True), CLIENTS, lambda attempt, digest: None)
    assert run is not None
    seen = np.zeros(CANARIES)
    for k in range(setting.rounds):
        round = Round(k, setting.rounds, SEED, CANARIES, k)
        with noted(NoiseShare, "drawn") as draws:
            total = run.total(get("fedavg"), ServerState({"a": STATE}), _uploads(CLIENTS), round)
        seen += total.integers.numpy() - np.sum([draw.answer for draw in draws[known:]], axis=0)
    return seen


CLIENTS = [Client(f"c{i:04}", 7) for i in range(CANARIES)]
HEAD = CANARIES // 10
STATE = torch.zeros(CANARIES, dtype=torch.float64)
UNITS: Mapping[str, Callable[[Setting], np.ndarray]] = {"clients": of_clients, "sites": of_sites}
OF_SUMS = {
    "clients": [Setting(1, 2.0), Setting(4, 3.0), Setting(8, 0.7, 0.5)],
    "sites": [Setting(1, 2.0), Setting(4, 3.0), Setting(9, 1.5)],
}


def _uploads(clients: Sequence[Client]) -> list[Upload]:
    canaries = {
        c.id: 1000 * row for c, row in zip(CLIENTS, torch.eye(CANARIES).double() * INCLUDED[:, None], strict=True)
    }
    return [Upload(c, {"a": canaries[c.id]}, 1.0) for c in clients]


def _opened(run: PrivateSum, uploads: Sequence[Upload], round: Round, start: Tensor = STATE) -> np.ndarray:
    algorithm, state = get("fedavg"), ServerState({"a": start})
    new = run.opened(algorithm, state, run.total(algorithm, state, uploads, round), round)
    moved: np.ndarray = new.params["a"].numpy()
    return moved


@functools.cache
def _config(setting: Setting, sites: bool = False) -> RunConfig:
    privacy: dict[str, Any] = {"unit": "client", "clip": 1.0, "noise": setting.noise, "delta": DELTA / 2}
    privacy |= (
        {"adversary": "server", "secure_aggregation": True, "colluding": 200, "debug_seed": SEED}
        if sites
        else {"adversary": "reader"}
    )
    clients: dict[str, Any] = {"weighting": "uniform", "sampling": "full"}
    if setting.share < 1:
        clients |= {"sampling": "poisson", "per_round": round(setting.share * CANARIES)}
    return load({"privacy": privacy, "clients": clients, "task": {"labels": ["a", "b"]}}, check_paths=False)


@pytest.mark.parametrize(("unit", "setting"), [(u, s) for u in UNITS for s in OF_SUMS[u]], ids=str)
def test_bound_of_sums_is_below_the_claim(unit: str, setting: Setting) -> None:
    found = setting.bound(UNITS[unit](setting), INCLUDED)
    print(f"claimed {setting.claim():.2f}, bound {found:.2f}")
    assert 0.1 * setting.claim() < found <= setting.claim()


def _bare_head_of_sum(total: Tensor, *rest: Any) -> Tensor:
    return torch.cat([noised(total, *rest)[:-HEAD], total[-HEAD:]])


DRAWN = NoiseShare.drawn
SUM_HALVED: Bug = (private_sum, "noised", lambda total, deviation, *rest: noised(total, deviation / 2, *rest))
BARE_HEAD: Bug = (NoiseShare, "drawn", lambda *args: DRAWN(*args) * (np.arange(CANARIES) < CANARIES - HEAD))


@pytest.mark.parametrize(
    ("scores", "bug", "looks_at"),
    [
        pytest.param(of_clients, SUM_HALVED, 0, id="clients, half the noise"),
        pytest.param(of_clients, (private_sum, "noised", _bare_head_of_sum), -HEAD, id="clients, no noise on the head"),
        pytest.param(of_clients, PRICED_ANEW, 0, id="clients, account at new noise"),
        pytest.param(of_clients_by_the_key, SOUND, 0, id="clients, known noise"),
        pytest.param(of_sites, SHARES_HALVED, 0, id="sites, half the noise"),
        pytest.param(of_sites, BARE_HEAD, -HEAD, id="sites, no noise on the head"),
        pytest.param(of_sites, PRICED_ANEW, 0, id="sites, account at new noise"),
        pytest.param(functools.partial(of_sites, known=0), SOUND, 0, id="sites, known noise"),
    ],
)
def test_planted_bug_of_sums_is_above_the_claim(
    scores: Callable[[Setting], np.ndarray], bug: Bug, looks_at: int
) -> None:
    with planted(*bug):
        found, claimed = BUGGY.bound(scores(BUGGY)[looks_at:], INCLUDED[looks_at:]), BUGGY.claim()
    print(f"claimed {claimed:.2f}, bound {found:.2f}")
    assert found > claimed
