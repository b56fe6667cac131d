"""Ranks of clients: from the configuration to each client, and rounds of clients whose ranks differ."""

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
from rondo.engine import serialization
from rondo.engine.server.ranks import client_ranks, upload_bytes
from rondo.models.adapted_layer import Site
from rondo.params import head, num_bytes, pick
from tiny_federation import RANK, Composed, change, config, make, population, run

RANKED = [n for n in algorithms.names() if algorithms.load(n).client_ranks]
RANKS = {"ann": 2, "bob": 1, "cid": 2, "dee": 3, "eve": 1}


def ranks(clients: dict[str, Any], count: int, largest: int = 8, seed: int = 0) -> tuple[int, ...] | None:
    site = Site("layer", "linear", (12, 13), largest, 1.0, 0.0)  # an upload of rank r has 100 r bytes
    return client_ranks(load({"seed": seed, "clients": clients}), algorithms.get("fedit"), [site], count)


def message(clients: dict[str, Any], count: int, largest: int = 8) -> str:
    with pytest.raises(ConfigError) as caught:
        ranks(clients, count, largest)
    return str(caught.value)


def test_without_a_word_on_ranks_there_are_none() -> None:
    assert ranks({}, 3) is None


def test_a_list_is_one_rank_a_client_in_order() -> None:
    assert ranks({"ranks": [1, 8, 3]}, 3) == (1, 8, 3)
    assert "clients.ranks: 3 for 4 clients" in message({"ranks": [1, 8, 3]}, 4)
    assert "clients.ranks: rank 8 is above the run's, which is 4" in message({"ranks": [1, 8, 3]}, 3, 4)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 200), st.integers(0, 99))
def test_shares_are_exact_to_less_than_a_client(parts: list[int], count: int, seed: int) -> None:
    shares = {str(r + 1): part / sum(parts) for r, part in enumerate(parts)}
    found = ranks({"ranks": shares}, count, seed=seed)
    assert found is not None
    assert len(found) == count
    assert found == ranks({"ranks": dict(reversed(shares.items()))}, count, seed=seed)
    numbers = Counter(found)
    for rank, share in shares.items():
        assert abs(numbers[int(rank)] - share * count) < 1


def test_shares_are_dealt_by_the_seed() -> None:
    found = [ranks({"ranks": {"4": 0.5, "8": 0.5}}, 20, seed=s) for s in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert found[0] is not None
    assert list(found[0]) != sorted(found[0])


def test_equal_remainders_go_to_the_smaller_ranks() -> None:
    third = 1 / 3
    found = ranks({"ranks": {"2": third, "4": third, "8": third}}, 4)
    assert Counter(found) == {2: 2, 4: 1, 8: 1}


def test_a_budget_is_the_largest_rank_that_fits() -> None:
    assert ranks({"bytes_budget": 399}, 2) == (3, 3)
    assert ranks({"bytes_budget": [100, 400, 10**9]}, 3) == (1, 4, 8)
    assert "99 bytes do not hold an upload of rank 1, which is 100" in message({"bytes_budget": [400, 99]}, 2)
    assert "2 for 3 clients" in message({"bytes_budget": [400, 500]}, 3)


# Rounds


def ranked(name: str, policy: str = "shared", run: RunConfig | None = None, **options: Any) -> Composed:
    """A simulation of clients of these ranks and of different sizes."""
    plain = population({c: 6 + i for i, c in enumerate(RANKS)})
    members = {n: replace(m, client=replace(m.client, rank=RANKS[n])) for n, m in plain.members.items()}
    return make(name, policy, people=replace(plain, members=members), run=run, **options)


@pytest.mark.parametrize("policy", ["shared", "local"])
@pytest.mark.parametrize("name", RANKED)
def test_what_a_budget_counts_is_what_is_sent(name: str, policy: str) -> None:
    # Modules of one shape: which slots LoRA-A2 keeps, and so where, follows the data.
    sim = ranked(name, policy, targets=["query"] if name == "lora-a2" else ["query", "intermediate.dense"])
    run(sim)
    sites = sim.network.sites.values()
    for client, rank in RANKS.items():
        sent = [num_bytes(pick(sim.uploads[t, client].params, ~head)) for t in range(2)]
        assert upload_bytes(sim.algorithm, sites, 4, rank) == max(sent)


@pytest.mark.parametrize("policy", ["shared", "local", "frozen"])
@pytest.mark.parametrize("name", RANKED)
def test_uploads_come_in_the_clients_order_whoever_trains_with_whom(
    name: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ranks lie across one another, so that cohorts do; the sum must not depend on it."""
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


@pytest.mark.parametrize("name", RANKED)
def test_clients_of_different_ranks_are_scored_and_repeat(name: str) -> None:
    one, two = ranked(name), ranked(name)
    for sim in (one, two):
        run(sim)
    assert serialization.same(one.state, two.state)
    each = one.score_clients(2)["clients"]["per_client"]
    assert set(each) == set(RANKS)
    assert one.score_newcomer(2)["global"]["examples"] == 6
    seen, _ = one.newcomer(2)
    first = next(iter(one.network.sites))
    assert seen[f"{first}.A"].shape[0] == RANK
