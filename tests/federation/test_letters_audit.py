"""An audit of the noise of the sites on the path of the letters: attempts of six sites, in each of which a site's
change is far longer than the clip, or zero, by a coin.

The auditor is the strongest that the claim is against: the server, which has all letters, and is told the vectors of
`colluding` sites and of as many further ones as the threshold leaves over. It scores each other site by the opened sum,
and by that site's masked vector as it came. All is the product's own but training: what a site learned is put into its
state, and the line is a call.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from watched import planted

pytest.importorskip("dp_accounting")

from parties import OPEN

from audits import epsilon_of_mu, least_mu_at
from planted import SHARES_HALVED, SHARES_LEFT_OUT, Bug
from rondo.algorithm import Client, Round, ServerState
from rondo.algorithms import get
from rondo.config import load
from rondo.engine.transport import Answer, Turnout, Work
from rondo.engine.wire import masked
from rondo.engine.wire.envelope import Identity
from rondo.engine.wire.parcel import sent_digest
from rondo.federation.identity import keys
from rondo.federation.identity.peers import Voice
from rondo.federation.server.masked_rounds import MaskedRounds
from rondo.federation.server.saved_sum import SavedSum
from rondo.federation.site.audit.audit import Audit
from rondo.federation.site.contract.protection import Allowance
from rondo.federation.site.ledger import SiteLedger
from rondo.federation.site.sum_state import Learned, Opened, SumState
from rondo.federation.site.sums import Sums
from rondo.privacy.accounts.account import Entry
from rondo.privacy.masking import masks
from rondo.privacy.masking.integers import epsilon_of_shares
from rondo.privacy.masking.session import SiteSession
from rondo.privacy.masking.shares import threshold_of
from rondo.privacy.sums.masked_sum import masked_sum

pytestmark = pytest.mark.slow

SITES, COLLUDING, ATTEMPTS, NOISE, CLIP, DELTA = 6, 1, 150, 0.5, 2.0, 1e-3
HONEST = threshold_of(SITES) - COLLUDING
SEED = int(os.environ.get("AUDIT_SEED", "0"))
CLIENTS = [Client(f"c{i}", 7) for i in range(SITES)]
NAMES = [f"site-{i}" for i in range(SITES)]
PRIVACY = {
    "adversary": "server",
    "unit": "client",
    "secure_aggregation": True,
    "clip": CLIP,
    "noise": NOISE,
    "delta": DELTA,
    "colluding": COLLUDING,
}


@pytest.fixture(scope="module")
def voices(tmp_path_factory: pytest.TempPathFactory) -> list[Voice]:
    """The sites' own keys, and those of their peers."""
    folder = tmp_path_factory.mktemp("keys")
    keys.make(["localhost"], NAMES, folder, days=10, clients={})
    return [v for name in NAMES if (v := Voice.of(keys.SiteKeys.read(folder / name))) is not None]


class Letters:
    """A line to sites in this process (:class:`rondo.federation.server.sites.Sites`).

    ``vectors``: the masked vector that came last from each site, as integers.
    """

    plan_digest = "plan"

    def __init__(self, sites: dict[str, Sums]) -> None:
        self.sites, self.vectors = sites, dict[str, NDArray[np.int64]]()
        self._answers: list[tuple[str, bytes]] = []

    def ask(self, site: str, kind: str, data: bytes, largest: int) -> None:
        answer = self.sites[site].answer(kind, data)
        if kind == "masked":
            self.vectors[site] = masks.from_ring(masked.decode_sent(answer, site, NAMES, SITES, 32).vector, 32)
        self._answers.append((site, answer))

    def replies(self) -> Iterator[tuple[str, bytes]]:
        came, self._answers = self._answers, []
        yield from came

    def site_of(self, client: str) -> str:
        return NAMES[int(client[1:])]

    def fewest(self, sites: Collection[str]) -> dict[str, int]:
        return {site: self.sites[site].fewest for site in sites}

    def tell(self, line: str) -> None:
        raise AssertionError(line)


def federation(folder: Path, voices: list[Voice]) -> tuple[Letters, MaskedRounds]:
    """The sites, and the sum at the server, whose clients have trained as soon as they are asked."""
    sections = {"clients": {"weighting": "uniform"}, "task": {"labels": ["a", "b"]}}
    config, sites = load({"privacy": PRIVACY, **sections}, check_paths=False), dict[str, Sums]()
    for voice, client in zip(voices, CLIENTS, strict=True):
        state = folder / voice.name
        ledger = SiteLedger(state, {client.id: [{"text": voice.name}]}, ("text",))
        allowance = Allowance(ledger, OPEN.privacy, "run", Entry.of(config), lambda line: None)
        facts = (
            "run",
            "plan",
            "model",
            config,
            Opened(state, "run", config.seed),
            Audit(state / "letters.jsonl"),
            lambda line: None,
        )
        sites[voice.name] = Sums(state / "run", voice, 2, 1e6, *facts, allowance)
    letters, sum = Letters(sites), masked_sum(config, CLIENTS, lambda attempt, digest: None)
    assert sum is not None
    trained = [Answer(client, kept=None) for client in CLIENTS]
    inner: Any = SimpleNamespace(identity=Identity("run", "model"), exchange=lambda round, work: trained)
    return letters, MaskedRounds(inner, letters, sum, SavedSum("run", folder), letters.tell)  # type: ignore[arg-type]


def audited(folder: Path, voices: list[Voice]) -> tuple[list[NDArray[np.float64]], NDArray[np.bool_]]:
    """The scores of honest sites in clips by the sum and by the masked vector, and whether each was in. An honest site
    that is in moves one number of its own."""
    letters, sum = federation(folder, voices)
    included = np.random.default_rng(SEED).random((ATTEMPTS, SITES)) < 0.5
    by_sum, by_vector = np.zeros((ATTEMPTS, HONEST)), np.zeros((ATTEMPTS, HONEST))
    algorithm, state = get("fedavg"), ServerState({"a": torch.zeros(SITES, dtype=torch.float64)})
    unused: Any = None
    work = Work(Turnout(tuple(CLIENTS)), unused, unused, unused, unused, unused)
    told: dict[str, NDArray[np.int64]] = {}
    real = SiteSession.masked

    def noted(session: SiteSession, named: Any, numbers: NDArray[np.int64], *rest: Any) -> Any:
        told[session.name] = numbers
        return real(session, named, numbers, *rest)

    def exchanged(round: Round) -> Iterator[Any]:
        for answer in sum.exchange(round, work):
            assert answer.summed is not None, answer.failure
        yield from ()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SiteSession, "masked", noted)
        patch.setattr("os.urandom", random.Random(SEED).randbytes)  # of the noise: no test fails by chance
        patch.setattr(SiteLedger, "epsilon", lambda *_, **__: 0.0)  # it takes seconds, and is only told
        for k in range(ATTEMPTS):
            round = Round(k, ATTEMPTS, SEED, SITES)
            sent = sent_digest(algorithm.broadcast(state, CLIENTS[0], round), CLIENTS[0], round)
            for i, (client, site) in enumerate(zip(CLIENTS, letters.sites.values(), strict=True)):
                change = torch.zeros(SITES, dtype=torch.float64)
                change[i] = 1000.0 * included[k, i]
                learned = Learned(client.id, k, k, SITES, 1.0, sent, ("a",), change)
                SumState(site.folder, site.voice.name).keep(learned)
            total = sum.total(algorithm, state, exchanged(round), round)
            sum.opened(algorithm, state, total, round)
            seen = total.integers.numpy() - np.sum([told[name] for name in NAMES[HONEST:]], axis=0)
            by_sum[k] = seen[:HONEST]
            by_vector[k] = [letters.vectors[name][i] for i, name in enumerate(NAMES[:HONEST])]
    unit = 2.0**sum.sum.points.fraction * CLIP
    return [by_sum.ravel() / unit, by_vector.ravel() / unit], included[:, :HONEST].ravel()


def bounds(readings: list[NDArray[np.float64]], included: NDArray[np.bool_]) -> list[float]:
    """A lower bound on epsilon by each reading, which hold together at 95 %."""
    found = [least_mu_at(0.5, scores, included, level=0.05 / len(readings)) for scores in readings]
    return [epsilon_of_mu(mu, DELTA) if mu > 0 else 0.0 for mu in found]


def test_lower_bound_is_below_the_claim_and_near_it(tmp_path: Path, voices: list[Voice]) -> None:
    claimed = epsilon_of_shares({(NOISE, 1.0): 1}, 1, DELTA)
    assert claimed == pytest.approx(epsilon_of_mu(1 / NOISE, DELTA), rel=1e-3)
    readings, included = audited(tmp_path, voices)
    by_sum, by_vector = bounds(readings, included)
    print(f"{included.sum()} of {len(included)} in: claimed {claimed:.3f}, lower bound by the sum {by_sum:.3f}, by the "
          f"vector {by_vector:.3f}; mean in clips {readings[0][included].mean():.3f} and "
          f"{readings[0][~included].mean():.3f}, deviation {readings[0][~included].std():.3f}")  # fmt: skip
    assert 0.5 * claimed < by_sum <= claimed
    assert by_vector <= claimed


STREAM = masks.stream
WITHOUT_MASKS: Bug = (masks, "stream", lambda *args: 0 * STREAM(*args))
"""Each vector has one share of the noise."""


@pytest.mark.parametrize(
    ("bug", "reading"), [(SHARES_HALVED, 0), (SHARES_LEFT_OUT, 0), (WITHOUT_MASKS, 1)], ids=["halved", "none", "bare"]
)
def test_planted_fault_is_caught(bug: Bug, reading: int, tmp_path: Path, voices: list[Voice]) -> None:
    with planted(*bug):
        found, claimed = bounds(*audited(tmp_path, voices)), epsilon_of_mu(1 / NOISE, DELTA)
    print(f"claimed {claimed:.3f}, lower bound by the sum {found[0]:.3f}, by the vector {found[1]:.3f}")
    assert found[reading] > claimed
