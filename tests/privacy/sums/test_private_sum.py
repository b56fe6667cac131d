"""Laws of the private sum, each of which catches a planted bug."""

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
from rondo.privacy.accounts.account import Account, read
from rondo.privacy.mechanism.clip import START, clipped
from rondo.privacy.mechanism.noise import digest_of, noised
from rondo.privacy.sums import private_sum as module
from rondo.privacy.sums.private_sum import PrivateSum

pytest.importorskip("dp_accounting")

FEDAVG = get("fedavg")
CLIENTS = [Client(f"c{i:03}", 7) for i in range(100)]
CLIP, NOISE = 2.0, 1.5
SIZE = 40_000


def config(**clients: Any) -> Any:
    return load(
        {
            "privacy": {"adversary": "reader", "unit": "client", "clip": CLIP, "noise": NOISE, "delta": 1e-3},
            "clients": {"sampling": "poisson", "per_round": 20, "weighting": "uniform", **clients},
            "task": {"labels": ["a", "b"]},
        },
        check_paths=False,
    )


def make(kind: type[PrivateSum] = PrivateSum, key: bytes = bytes(32), **changes: Any) -> PrivateSum:
    return kind(replace_config(config(), **changes), len(CLIENTS), key, Account(lambda lines: None))


def replace_config(whole: Any, **privacy: Any) -> Any:
    return whole.model_copy(update={"privacy": whole.privacy.model_copy(update=privacy)})


def round_of(attempt: int = 0) -> Round:
    return Round(0, 50, 0, len(CLIENTS), attempt)


def state() -> ServerState:
    return ServerState({"a": torch.ones(SIZE // 2), "b": torch.ones(SIZE // 2)})


def upload(client: Client, change: float, weight: float = 1.0) -> Upload:
    """Both tensors changed by a vector of norm ``change`` each."""
    step = torch.full((SIZE // 2,), change / math.sqrt(SIZE // 2))
    return Upload(client, {"a": 1 + step, "b": 1 + step}, weight)


def published(private: PrivateSum, uploads: Iterable[Upload], attempt: int = 0) -> Tensor:
    """What a round adds to the state, (n,) in float64."""
    total = private.total(FEDAVG, state(), uploads, round_of(attempt))
    new = private.opened(FEDAVG, state(), total, round_of(attempt))
    return torch.cat([new.params[name].double() - 1 for name in "ab"])


def noise_is_of_the_right_size(kind: type[PrivateSum]) -> None:
    """Also where nobody came: the expected number divides, and the noise is there."""
    added = published(make(kind), [])
    assert float(added.std()) == pytest.approx(NOISE * CLIP / 20, rel=0.02)


def one_client_adds_at_most_the_clip(kind: type[PrivateSum]) -> None:
    """Over all tensors together, whatever weight it claims."""
    for change, weight in ((50.0, 1.0), (CLIP, 1.0), (0.1, 9.0)):
        private = make(kind, noise=0.0)
        added = published(private, [upload(CLIENTS[0], change, weight)])
        expected = min(CLIP, math.sqrt(2) * change) / 20
        assert float(added.norm()) == pytest.approx(expected, rel=5e-3)


def noise_of_other_attempts_is_other_noise(kind: type[PrivateSum]) -> None:
    private = make(kind)
    one, other = published(private, [], 0), published(private, [], 1)
    assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.05


def noise_of_other_sums_of_an_attempt_is_other_noise(kind: type[PrivateSum]) -> None:
    """A site was away the second time: the difference of both sums must not be bare."""
    private = make(kind)
    one, other = published(private, []), published(private, [upload(CLIENTS[0], 0.5)])
    assert float((one - other).norm()) > 10 * CLIP / 20
    assert private.account.steps == {"": {(NOISE / math.sqrt(2), 0.2): 1}}


def sample_follows_from_the_key_alone(kind: type[PrivateSum]) -> None:
    def drawn(key: bytes) -> list[list[str]]:
        private = make(kind, key)
        return [[c.id for c in private.sample(CLIENTS, round_of(attempt))] for attempt in range(400)]

    one = drawn(bytes(32))
    assert one == drawn(bytes(32))
    assert one != drawn(bytes([1] * 32))
    counts = torch.tensor([float(len(ids)) for ids in one])
    assert abs(float(counts.mean()) - 20) < 4 * math.sqrt(16 / 400)
    assert abs(float(counts.var()) - 16) < 4 * 16 * math.sqrt(2 / 399)


def draw_of_a_client_depends_on_itself_alone(kind: type[PrivateSum]) -> None:
    """An attempt that is asked again after the roster has changed: the others are in it, or not, as before."""
    private = make(kind)
    newcomers = [Client("a new one", 7), *CLIENTS[1:], Client("\ud800", 7)]
    for attempt in range(20):
        before, after = (private.sample(clients, round_of(attempt)) for clients in (CLIENTS, newcomers[::-1]))
        assert [c for c in before if c in CLIENTS[1:]] == [c for c in after if c in CLIENTS[1:]]


def adaptive_clip_has_its_noise_in_the_account(kind: type[PrivateSum]) -> None:
    """The noise of sum and bits together is that of z, and both are there."""
    private = make(kind, clip="adaptive")
    added = published(private, [])
    of_sum = float(added.std()) * 20 / START
    for attempt in range(1, 400):
        private.opened(FEDAVG, state(), private.total(FEDAVG, state(), [], round_of(attempt)), round_of(attempt))
    steps = torch.tensor([private.clip(attempt) for attempt in range(400)]).log().diff()
    of_bits = float(steps.std()) / 0.2 * 20
    assert of_bits == pytest.approx(2.5 * NOISE, rel=0.1)
    assert (of_sum**-2 + (2 * of_bits) ** -2) ** -0.5 == pytest.approx(NOISE, rel=0.02)


def empty_rounds_count(kind: type[PrivateSum]) -> None:
    private = make(kind)
    assert private.least == 0
    published(private, [])
    assert private.spent.epsilon() > 0


LAWS: tuple[Callable[[type[PrivateSum]], None], ...] = (
    noise_is_of_the_right_size,
    one_client_adds_at_most_the_clip,
    noise_of_other_attempts_is_other_noise,
    noise_of_other_sums_of_an_attempt_is_other_noise,
    sample_follows_from_the_key_alone,
    draw_of_a_client_depends_on_itself_alone,
    adaptive_clip_has_its_noise_in_the_account,
    empty_rounds_count,
)


@pytest.mark.parametrize("law", LAWS)
def test_private_sum_obeys(law: Callable[[type[PrivateSum]], None]) -> None:
    law(PrivateSum)


class ByWeight(PrivateSum):
    def total(self, algorithm: Any, state: Any, uploads: Iterable[Upload], round: Round) -> Tensor:
        each = [one.weight * PrivateSum.total(self, algorithm, state, [one], round) for one in uploads]
        return sum(each, PrivateSum.total(self, algorithm, state, [], round))


class FromTheSeed(PrivateSum):
    def sample(self, clients: Any, round: Round) -> list[Client]:
        taken = torch.rand(len(clients), generator=round.attempt_generator("clients")) < self._share
        return [c for c, drawn in zip(clients, taken.tolist(), strict=True) if drawn]


class ByPosition(PrivateSum):
    def sample(self, clients: Any, round: Round) -> list[Client]:
        places = super().sample([Client(str(place), 1) for place in range(len(clients))], round)
        return sorted((clients[int(place.id)] for place in places), key=lambda c: c.id)


class EmptyIsSkipped(PrivateSum):
    def opened(self, algorithm: Any, state: Any, total: Tensor, round: Round) -> Any:
        return super().opened(algorithm, state, total, round) if total.any() else state


def _per_tensor(change: Tensor, bound: float) -> Tensor:
    return torch.cat([clipped(change[: SIZE // 2], bound), clipped(change[SIZE // 2 :], bound)])


def _of_nothing(total: Tensor, *rest: Any) -> Tensor:
    return total + noised(torch.zeros_like(total), *rest)


PLANTED: dict[str, dict[str, Any]] = {
    "noise halved": {"noised": lambda total, dev, key, attempt: noised(total, dev / 2, key, attempt)},
    "clip left out": {"clipped": lambda change, bound: change},
    "clip per tensor": {"clipped": _per_tensor},
    "noise of another attempt": {"noised": lambda total, dev, key, attempt: noised(total, dev, key, 0)},
    "bare bits": {"AdaptiveClip.of_bits": 1e-9, "AdaptiveClip.of_sum": NOISE},
    "bits not in the account": {"AdaptiveClip.of_bits": NOISE, "AdaptiveClip.of_sum": NOISE},
    "noise of another sum": {"noised": _of_nothing},
}
KINDS = {"weights": ByWeight, "sampling from the seed": FromTheSeed, "sampling by position": ByPosition}
KINDS |= {"empty skipped": EmptyIsSkipped}


BUGS: dict[str, Callable[[type[PrivateSum]], None]] = {
    "noise halved": noise_is_of_the_right_size,
    "clip left out": one_client_adds_at_most_the_clip,
    "clip per tensor": one_client_adds_at_most_the_clip,
    "weights": one_client_adds_at_most_the_clip,
    "noise of another attempt": noise_of_other_attempts_is_other_noise,
    "noise of another sum": noise_of_other_sums_of_an_attempt_is_other_noise,
    "sampling from the seed": sample_follows_from_the_key_alone,
    "sampling by position": draw_of_a_client_depends_on_itself_alone,
    "empty skipped": empty_rounds_count,
    "bare bits": adaptive_clip_has_its_noise_in_the_account,
    "bits not in the account": adaptive_clip_has_its_noise_in_the_account,
}
"""The law that each planted bug breaks."""


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug_breaks_its_law(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, broken in PLANTED.get(bug, {}).items():
        monkeypatch.setattr(f"{module.__name__}.{name}", broken)
    with pytest.raises(AssertionError):
        BUGS[bug](KINDS.get(bug, PrivateSum))


def test_adaptive_clip_reaches_the_median() -> None:
    """Twenty changes of norms 0.1 to 2.0 in every round, without noise."""
    private = make(noise=0.0, clip="adaptive")
    uploads = [upload(client, (k + 1) / 10 / math.sqrt(2)) for k, client in enumerate(CLIENTS[:20])]
    for attempt in range(60):
        published(private, uploads, attempt)
    assert private.clip(0) == START
    assert 1.0 < private.clip(1000) < 1.1
    assert private.clip(30) < private.clip(60)


def test_clip_of_an_attempt_that_is_repeated_stays() -> None:
    private = make(clip="adaptive")
    for attempt in range(3):
        published(private, [], attempt)
    before = [private.clip(attempt) for attempt in range(4)]
    assert len(set(before)) == 4
    published(private, [], 1)
    assert [private.clip(attempt) for attempt in range(4)] == before
    published(private, [upload(CLIENTS[0], 5.0)], 0)
    assert private.clip(0) == before[0]
    assert private.clip(1) != before[1]


def test_same_sum_spends_once_and_another_again() -> None:
    private = make()
    one = published(private, [])
    once = private.spent.epsilon()
    assert published(private, []).equal(one)
    assert private.spent.epsilon() == once
    published(private, [upload(CLIENTS[0], 0.5)])
    assert private.spent.epsilon() > once
    assert private.account.steps == {"": {(NOISE / math.sqrt(2), 0.2): 1}}


def test_sum_is_written_down_before_it_is_used() -> None:
    kept: list[bytes] = []
    private = replace(make(), account=Account(kept.append))

    class Failing:
        def __getattr__(self, name: str) -> Any:
            if name == "finish":
                raise RuntimeError("it dies here")
            return getattr(FEDAVG, name)

    total = private.total(FEDAVG, state(), [], round_of())
    with pytest.raises(RuntimeError, match="dies"):
        private.opened(Failing(), state(), total, round_of())  # type: ignore[arg-type]
    (entry,) = read(kept)
    assert (entry.attempt, entry.kind, entry.clip) == (0, (NOISE, 0.2), CLIP)
    assert entry.sum == digest_of(total, NOISE * CLIP).hex()


def test_clients_that_come_later_make_no_earlier_sum_cheaper() -> None:
    """With more clients each is drawn with a smaller probability, but only from now on."""
    few, attempts = make(), range(5)
    for attempt in attempts:
        published(few, [], attempt)
    spent = few.spent.epsilon()
    many = PrivateSum(few.config, 10 * len(CLIENTS), few.key, few.account)
    assert many.spent.epsilon() == spent
    assert many.spent.epsilon(1) < few.spent.epsilon(1)
    published(many, [upload(CLIENTS[0], 0.5)], 0)  # another sum of an old round: the larger probability holds
    assert {sampled for _, sampled in many.account.steps[""]} == {0.2}
    assert many.spent.epsilon() > spent


def test_upload_that_cannot_be_added_counts_as_zero() -> None:
    """A round that stopped at it would tell who was in it."""
    good, whole = upload(CLIENTS[1], 0.5), torch.ones(SIZE // 2)
    for tensor in (torch.ones(3), whole * math.inf):
        bad = Upload(CLIENTS[0], {"a": tensor, "b": whole}, 1.0)
        assert published(make(), [bad, good]).equal(published(make(), [good]))


def test_budget_is_exhausted_before_it_is_exceeded() -> None:
    private = make(budget=1.0)
    attempt = 0
    while not private.spent.exhausted:
        published(private, [], attempt)
        attempt += 1
        assert private.spent.epsilon() <= 1.0
    assert private.spent.epsilon(1) > 1.0
    assert attempt > 0
