"""Laws of a masked sum whose sites add the noise, each of which catches a planted bug."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rondo.algorithm import Client, Round, ServerState, Upload
from rondo.algorithms import get
from rondo.config import load
from rondo.engine.wire import serialization
from rondo.errors import ConfigError
from rondo.privacy.masking import integers
from rondo.privacy.masking.integers import NoiseShare, NotDecodable, stream_of
from rondo.privacy.masking.shares import threshold_of
from rondo.privacy.mechanism.noise import SecretStream
from rondo.privacy.sums import masked_sum as module
from rondo.privacy.sums.masked_sum import MaskedSum, masked_sum
from tiny_federation import config as tiny_config
from tiny_federation import make as tiny
from watched import planted

FEDAVG = get("fedavg")
CLIENTS = [Client(f"c{i}", 7) for i in range(10)]
CLIP, NOISE, COLLUDING = 2.0, 1.5, 2
SIZE = 4000
PRIVACY = {"adversary": "server", "secure_aggregation": True, "unit": "client", "clip": CLIP, "noise": NOISE}
WHOLE = NOISE * CLIP * math.sqrt(10 / (7 - COLLUDING))
"""Deviation of the noise in a sum of ten sites, of which seven open it and two collude."""


def config(**privacy: Any) -> Any:
    sections = {"clients": {"weighting": "uniform"}, "task": {"labels": ["a", "b"]}, "seed": 3}
    whole = {**PRIVACY, "delta": 1e-3, "colluding": COLLUDING, **privacy}
    return load({"privacy": whole, **sections}, check_paths=False)


def make(clients: int = 10, **privacy: Any) -> MaskedSum:
    found = masked_sum(config(**privacy), CLIENTS[:clients], lambda attempt, digest: None)
    assert found is not None
    return found


def round_of(attempt: int = 0) -> Round:
    return Round(0, 50, 3, len(CLIENTS), attempt)


def state() -> ServerState:
    return ServerState({"a": torch.ones(SIZE)})


def upload(client: Client, change: float = 0.0) -> Upload:
    return Upload(client, {"a": 1 + torch.full((SIZE,), change / math.sqrt(SIZE))}, 1.0)


def uploads(change: float = 0.0) -> list[Upload]:
    """Of all clients, of which the first has learned ``change``."""
    return [upload(CLIENTS[0], change), *map(upload, CLIENTS[1:])]


def opened(sum: MaskedSum, uploads: Iterable[Upload], attempt: int = 0) -> Tensor:
    """The sum of changes in a round's new state, (n,) in float64."""
    total = sum.total(FEDAVG, state(), uploads, round_of(attempt))
    new = sum.opened(FEDAVG, state(), total, round_of(attempt))
    return (new.params["a"].double() - 1) * len(total.weights)


def correlation(one: Tensor, other: Tensor) -> float:
    return abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1]))


def noise_is_that_of_the_honest_sites() -> None:
    """Those of the fewest that open a sum, without the colluding ones, have all of z clip."""
    assert float(opened(make(), uploads()).std()) == pytest.approx(WHOLE, rel=0.05)
    for clients in (4, 7):
        honest = threshold_of(clients) - COLLUDING
        added = opened(make(clients), uploads()[:clients])
        assert float(added.std()) * math.sqrt(honest / clients) == pytest.approx(NOISE * CLIP, rel=0.05)


def one_client_adds_at_most_the_clip() -> None:
    """And without noise, it adds its change."""
    for change in (50.0, 1e3, 1.0):
        sum = make(debug_seed=0)
        added = opened(sum, uploads(change)) - opened(sum, uploads())
        assert float(added.norm()) == pytest.approx(min(CLIP, change), rel=5e-3)


def noise_is_other_noise_in_every_sum() -> None:
    """In the same round of the same plan too, and in another one of a debug seed."""
    assert correlation(opened(make(), uploads()), opened(make(), uploads())) < 0.08
    assert correlation(opened(make(), uploads(), 0), opened(make(), uploads(), 1)) < 0.08
    assert correlation(opened(make(debug_seed=0), uploads(), 0), opened(make(debug_seed=0), uploads(), 1)) < 0.08


def every_site_has_noise_of_its_own() -> None:
    """Equal noise of all would make the sum of ten as loud as ten times one."""
    assert float(opened(make(debug_seed=0), uploads()).std()) == pytest.approx(WHOLE, rel=0.05)


def sum_is_spent_before_a_state_is_made() -> None:
    spent: list[tuple[int, str]] = []
    sum = replace(make(debug_seed=0), spend=lambda attempt, digest: spent.append((attempt, digest)))
    total = sum.total(FEDAVG, state(), uploads(), round_of())
    assert not spent
    with pytest.raises(NotDecodable):  # it was seen all the same
        sum.opened(FEDAVG, state(), total._replace(integers=total.integers * 0 + 2**30), round_of())
    for change in (0.0, 0.0, 1.0):
        opened(sum, uploads(change))
    digests = [digest for _, digest in spent]
    assert len(digests) == 4
    assert digests[1] == digests[2]
    assert len(set(digests)) == 3


LAWS: tuple[Callable[[], None], ...] = (
    noise_is_that_of_the_honest_sites,
    one_client_adds_at_most_the_clip,
    noise_is_other_noise_in_every_sum,
    every_site_has_noise_of_its_own,
    sum_is_spent_before_a_state_is_made,
)


@pytest.mark.parametrize("law", LAWS)
def test_noisy_sum_obeys(law: Callable[[], None]) -> None:
    law()


def plain(share: NoiseShare, change: Tensor) -> Tensor:
    return (change * 2.0**share.points.fraction).round().to(torch.int64)


DEVIATION, CLIPPED, OPENED = NoiseShare.deviation, integers.clipped, MaskedSum.opened
BUGS: dict[str, tuple[Any, str, Any]] = {
    "noise halved": (NoiseShare, "deviation", lambda share, threshold: DEVIATION(share, threshold) // 2),
    "share of all sites": (module, "threshold_of", lambda sites: sites + COLLUDING),
    "share of the threshold": (
        NoiseShare,
        "deviation",
        lambda share, threshold: DEVIATION(replace(share, colluding=0), threshold),
    ),
    "clip left out": (integers, "clipped", lambda change, bound: change),
    "clip left out and not checked": (NoiseShare, "encode", plain),
    "clip twice as long": (integers, "clipped", lambda change, bound: CLIPPED(change, 2 * bound)),
    "noise of another sum": (module, "stream_of", lambda seed, attempt, client: stream_of(0, 0, client)),
    "noise of the plan's seed": (module, "stream_of", lambda seed, attempt, client: stream_of(3, attempt, client)),
    "one noise for all sites": (module, "stream_of", lambda seed, attempt, client: stream_of(seed or 0, attempt, "")),
    "no noise": (NoiseShare, "drawn", lambda share, threshold, count, stream: torch.zeros(count).long().numpy()),
    "not spent": (MaskedSum, "opened", lambda sum, *given: OPENED(replace(sum, spend=lambda *_: None), *given)),
}


BROKEN: dict[str, Callable[[], None]] = {
    "noise halved": noise_is_that_of_the_honest_sites,
    "share of all sites": noise_is_that_of_the_honest_sites,
    "share of the threshold": noise_is_that_of_the_honest_sites,
    "clip left out": one_client_adds_at_most_the_clip,
    "clip left out and not checked": one_client_adds_at_most_the_clip,
    "clip twice as long": one_client_adds_at_most_the_clip,
    "noise of another sum": noise_is_other_noise_in_every_sum,
    "noise of the plan's seed": noise_is_other_noise_in_every_sum,
    "one noise for all sites": every_site_has_noise_of_its_own,
    "no noise": noise_is_that_of_the_honest_sites,
    "not spent": sum_is_spent_before_a_state_is_made,
}
"""The law that each planted bug breaks."""


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_breaks_its_law(bug: str) -> None:
    """Or the sum itself refuses what the bug makes of it: a change beyond the clip."""
    with planted(*BUGS[bug]), pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
        BROKEN[bug]()


def test_noise_of_the_system_needs_no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def bits(count: int) -> bytes:
        asked.append(count)
        return SecretStream(0, str(len(asked)))._bytes(count)

    monkeypatch.setattr("os.urandom", bits)
    opened(make(), uploads())
    assert sum(asked) >= 10 * SIZE * 16  # two words for each number at least
    asked.clear()
    opened(make(debug_seed=0), uploads())
    assert not asked


def test_too_few_sites_for_noise_skip_the_round() -> None:
    sum = make(4)
    opened(sum, uploads()[:4])  # three open it, and two collude
    with pytest.raises(ValueError, match="of 2 sites that open a sum, 2 may collude: nobody's noise counts"):
        sum.total(FEDAVG, state(), uploads()[:3], round_of())
    assert sum.total(FEDAVG, state(), [], round_of()).sites == 0


def test_runs_without_room_or_honest_sites_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"privacy.colluding: 7 of 10 sites open a sum, and if 7 collude, nobody's"):
        make(colluding=7)
    with pytest.raises(ConfigError, match=r"privacy.clip: 10 .* and noise of 1000 times that leave fewer than 16 frac"):
        make(noise=1000.0)
    assert make(noise=1000.0, ring=64).points.fraction > 16


def test_noisy_sum_of_integers_is_decoded_within_its_reach() -> None:
    """A sum that no noise explains is not decodable."""
    sum = make(debug_seed=0)
    total = sum.total(FEDAVG, state(), uploads(), round_of())
    reach = sum.noise.reach(7, 10, SIZE) + 10 * CLIP  # type: ignore[union-attr]
    unit = 2.0**sum.points.fraction / math.sqrt(SIZE)
    sum.opened(FEDAVG, state(), total._replace(integers=torch.full((SIZE,), int(0.99 * reach * unit))), round_of())
    with pytest.raises(NotDecodable):
        sum.opened(FEDAVG, state(), total._replace(integers=torch.full((SIZE,), int(1.01 * reach * unit))), round_of())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rolora", "scaffold"])
def test_rounds_of_whole_runs_are_those_of_a_debug_seed(name: str) -> None:
    plain = {"optimizer": "sgd", "max_grad_norm": 0.0} if name == "scaffold" else {}
    privacy = {**PRIVACY, "noise": 0.2, "delta": 1e-3, "debug_seed": 5}
    states = []
    for seed in (5, 5, 6, None):
        run = tiny_config(
            privacy={**privacy, "debug_seed": seed},
            clients={"weighting": "uniform"},
            evaluation={"diagnostics_every": 0},
            train=plain,
            task={"labels": ["a", "b"]},
        )
        sim = tiny(name, run=run)
        assert [sim.run_round(attempt)["skipped"] for attempt in range(2)] == [None, None]
        states.append(serialization.pack(sim.state))
    assert states[0] == states[1]
    assert len(set(states)) == 3
