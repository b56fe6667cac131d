"""Client ranks: from the configuration to each client, and rounds with clients of different ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rondo import algorithms
from rondo.algorithm import Upload
from rondo.config import ConfigError, RunConfig, load
from rondo.engine.server.ranks import client_ranks, upload_bytes
from rondo.engine.wire import serialization
from rondo.models.networks.adapted_layer import Site
from rondo.params import head, num_bytes, pick
from tiny_federation import RANK, Composed, change, config, make, population, run

RANKED = [n for n in algorithms.names() if algorithms.entry(n).traits.client_ranks]
RANKS = {"ann": 2, "bob": 1, "cid": 2, "dee": 3, "eve": 1}


def ranks(clients: dict[str, Any], count: int, largest: int = 8, seed: int = 0) -> tuple[int, ...] | None:
    site = Site("layer", "linear", (12, 13), largest, 1.0, 0.0)  # an upload of rank r has 100 r bytes
    return client_ranks(load({"seed": seed, "clients": clients}), algorithms.get("fedit"), [site], count)


def message(clients: dict[str, Any], count: int, largest: int = 8) -> str:
    with pytest.raises(ConfigError) as caught:
        ranks(clients, count, largest)
    return str(caught.value)


def test_ranks_default_to_none() -> None:
    assert ranks({}, 3) is None


def test_rank_list_has_one_rank_per_client_in_order() -> None:
    assert ranks({"ranks": [1, 8, 3]}, 3) == (1, 8, 3)
    assert "clients.ranks: rank 8 is above the run's, which is 4" in message({"ranks": [1, 8, 3]}, 3, 4)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 200), st.integers(0, 99))
def test_rank_shares_are_exact_to_less_than_one_client(parts: list[int], count: int, seed: int) -> None:
    shares = {str(r + 1): part / sum(parts) for r, part in enumerate(parts)}
    assigned = ranks({"ranks": shares}, count, seed=seed)
    assert assigned is not None
    assert len(assigned) == count
    assert assigned == ranks({"ranks": dict(reversed(shares.items()))}, count, seed=seed)
    counts = Counter(assigned)
    for rank, share in shares.items():
        assert abs(counts[int(rank)] - share * count) < 1


def test_rank_shares_are_dealt_by_seed() -> None:
    assigned = [ranks({"ranks": {"4": 0.5, "8": 0.5}}, 20, seed=s) for s in (0, 0, 1)]
    assert assigned[0] == assigned[1] != assigned[2]
    assert assigned[0] is not None
    assert list(assigned[0]) != sorted(assigned[0])


def test_equal_remainders_go_to_smaller_ranks() -> None:
    third = 1 / 3
    assigned = ranks({"ranks": {"2": third, "4": third, "8": third}}, 4)
    assert Counter(assigned) == {2: 2, 4: 1, 8: 1}


def test_largest_remainder_is_rounded_up() -> None:
    """Of ten clients 1.3, 2.8 and 5.9."""
    assert Counter(ranks({"ranks": {"2": 0.13, "4": 0.28, "8": 0.59}}, 10) or ()) == {2: 1, 4: 3, 8: 6}


def test_byte_budget_gives_largest_rank_that_fits() -> None:
    assert ranks({"bytes_budget": 399}, 2) == (3, 3)
    assert ranks({"bytes_budget": [100, 400, 10**9]}, 3) == (1, 4, 8)
    assert "99 bytes do not hold an upload of rank 1, which is 100" in message({"bytes_budget": [400, 99]}, 2)


def test_byte_budget_sees_that_the_runs_rank_may_be_cheaper() -> None:
    """mFedLoRU's nested factors of rank 7 cost more than A and B of the run's rank 8, which that rank sends instead."""
    site, mfedloru = Site("layer", "linear", (12, 13), 8, 1.0, 0.0), algorithms.get("mfedloru")
    sizes = {rank: upload_bytes(mfedloru, [site], 2, rank) for rank in range(1, 9)}
    assert sizes[8] == 8 * 25 * 4 < sizes[5] < sizes[6] < sizes[7]
    settings = load({"clients": {"bytes_budget": [sizes[8], sizes[8] - 1]}})
    assert client_ranks(settings, mfedloru, [site], 2) == (8, 4)


# Rounds


def ranked(name: str, policy: str = "shared", run: RunConfig | None = None, **options: Any) -> Composed:
    """A simulation of clients with the ranks of ``RANKS`` and different sizes."""
    plain = population({c: 6 + i for i, c in enumerate(RANKS)})
    members = {n: replace(m, client=replace(m.client, rank=RANKS[n])) for n, m in plain.members.items()}
    return make(name, policy, people=replace(plain, members=members), run=run, **options)


@pytest.mark.parametrize("policy", ["shared", "local"])
@pytest.mark.parametrize("name", RANKED)
@pytest.mark.sweep(3)
def test_budgeted_bytes_equal_uploaded_bytes(name: str, policy: str) -> None:
    # One shape for LoRA-A2: the data decide which slots it keeps, and so in which modules.
    sim = ranked(name, policy, targets=["query"] if name == "lora-a2" else ["query", "intermediate.dense"])
    run(sim)
    sites = sim.network.sites.values()
    for client, rank in RANKS.items():
        uploaded = [num_bytes(pick(sim.uploads[t, client].params, ~head)) for t in range(2)]
        assert upload_bytes(sim.algorithm, sites, 4, rank) == max(uploaded)


@pytest.mark.sweep(3)
@pytest.mark.parametrize(
    "policy", ["shared", pytest.param("local", marks=pytest.mark.slow), pytest.param("frozen", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", RANKED)
def test_uploads_keep_client_order_across_cohorts(name: str, policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks interleave, so the cohorts do too; the sum must not depend on them."""
    together = ranked(name, policy, dtype=torch.float64)
    alone = ranked(name, policy, config(simulation={"cohort": 1}), dtype=torch.float64)
    assert [tuple(c.id for c in cohort) for cohort in together.cohorts.plan(together.population.clients)] == [
        ("ann", "cid"), ("bob", "eve"), ("dee",),
    ]  # fmt: skip
    received: list[str] = []
    aggregate = type(together.algorithm).aggregate

    def listening(self: Any, held: Any, uploads: Any, round: Any) -> Any:
        def heard(uploads: Sequence[Upload]) -> Any:
            for upload in uploads:
                received.append(upload.client.id)
                yield upload

        return aggregate(self, held, heard(uploads), round)

    monkeypatch.setattr(type(together.algorithm), "aggregate", listening)
    records = [run(s) for s in (together, alone)]
    assert received == 4 * list(RANKS)
    for one, other in zip(*records, strict=True):
        assert (one["bytes_up"], one["bytes_down"]) == (other["bytes_up"], other["bytes_down"])
        assert one["loss"] == pytest.approx(other["loss"])
    one, other = (change(s, *s.newcomer(2)) for s in (together, alone))  # factors themselves may differ in sign
    for n, tensor in one.items():
        torch.testing.assert_close(tensor, other[n], rtol=0, atol=1e-9)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", RANKED)
def test_different_ranks_are_scored_and_repeatable(name: str) -> None:
    one, two = ranked(name), ranked(name)
    for sim in (one, two):
        run(sim)
    assert serialization.same(one.state, two.state)
    client_scores = one.score_clients(2)["clients"]["per_client"]
    assert set(client_scores) == set(RANKS)
    assert one.score_newcomer(2)["global"]["examples"] == 6
    seen, _ = one.newcomer(2)
    first = next(iter(one.network.sites))
    assert seen[f"{first}.A"].shape[0] == RANK
