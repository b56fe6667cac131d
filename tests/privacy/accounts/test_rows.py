"""The account of private steps: the largest epsilon, and the clients within a budget, without epsilon of each."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from rondo import algorithms
from rondo.algorithm import Client, Round, ServerState
from rondo.config import load
from rondo.privacy.accounts import account as spent
from rondo.privacy.accounts.account import TOLD, Account, RowAccount


class Counted:
    """An epsilon that grows with the probability and with the steps, and how often it was asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, steps: Mapping[tuple[float, float], int], delta: float, enough: float = 0.0) -> float:
        self.asked += 1
        return math.sqrt(sum(count * share**2 for (_, share), count in steps.items()))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    epsilon = Counted()
    monkeypatch.setattr(spent, "epsilon_of_steps", epsilon)
    return epsilon


def account(**privacy: Any) -> RowAccount:
    rows = {"adversary": "server", "unit": "example", "clip": 1.0, "noise": 1.0, "delta": 1e-5, **privacy}
    sections = {"privacy": rows, "clients": {"weighting": "uniform"}, "task": {"labels": ["a", "b"]}}
    return RowAccount(load({**sections, "train": {"batch_size": 16}}, check_paths=False), Account(lambda lines: None))


def of_each(found: RowAccount) -> dict[str, float]:
    return {client: Counted()(own, 0) for client, own in found.account.steps.items()}


def drawn(seed: int, count: int) -> list[Client]:
    luck = random.Random(seed)
    return [Client(f"c{i}", luck.randint(20, 5000)) for i in range(count)]


def trained(found: RowAccount, clients: list[Client], luck: random.Random) -> None:
    """Up to three epochs of each client, some of them on half of its rows."""
    for client in clients:
        for _ in range(luck.randint(0, 3)):
            rows = client.num_examples // luck.choice([1, 1, 1, 2])
            found.count(Client(client.id, rows), -(-rows // 16))
    found.settle()


@pytest.mark.parametrize("seed", range(20))
def test_largest_epsilon_is_found(seed: int, counted: Counted) -> None:
    found, clients = account(), drawn(seed, 1 + seed**2)
    trained(found, clients, random.Random(seed))
    assert found.record(())["epsilon"] == max(of_each(found).values(), default=0.0)


def test_thousand_clients_take_epsilon_of_some_ten(counted: Counted) -> None:
    found, clients = account(), drawn(0, 1000)
    for client in clients:
        found.count(client, -(-client.num_examples // 16))
    found.settle()
    largest = found.record(())["epsilon"]
    assert largest == max(of_each(found).values())
    assert counted.asked < 20
    for share in (0.7, 0.4):
        counted.asked = 0
        beyond = found._above(share * largest, found.account.steps)
        assert set(beyond) == {client for client, epsilon in of_each(found).items() if epsilon > share * largest}
        assert counted.asked < 2 * len(beyond) + 20


@pytest.mark.parametrize("seed", range(10))
def test_clients_within_the_budget_are_those_that_are_by_themselves(seed: int, counted: Counted) -> None:
    algorithm, state = algorithms.get("fedit"), ServerState({"m.A": torch.zeros(2, 3), "m.B": torch.zeros(3, 2)})
    found, clients = account(budget=0.02 + 0.1 * seed), drawn(seed, 200)
    trained(found, clients, random.Random(seed))
    able = found.able(algorithm, state, clients, Round(0, 2, 0, 200))
    for client in clients:
        found.count(client, -(-client.num_examples // 16))
    found.settle()
    after = of_each(found)
    assert able == [client for client in clients if after[client.id] <= 0.02 + 0.1 * seed]


def test_record_tells_epsilon_of_few_clients_only(counted: Counted) -> None:
    found, clients = account(), drawn(0, TOLD + 1)
    trained(found, clients, random.Random(0))
    asked = [client.id for client in clients]
    told = found.record(asked[1:])["client_epsilon"]
    assert told == {client: of_each(found).get(client, 0.0) for client in asked[1:]}
    assert "client_epsilon" not in found.record(asked)
