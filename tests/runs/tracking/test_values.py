"""The numbers of a round as trackers take them."""

from __future__ import annotations

from typing import Any

from page_runs import recorded
from rondo.runs.tracking.observer import settings, values


def record(**changes: Any) -> dict[str, Any]:
    return {**recorded(rounds=1).rounds[0], **changes}


def test_round_has_scores_costs_and_diagnostics() -> None:
    found = values(record())
    assert found["round"] == 1.0
    assert {"global/accuracy", "clients/accuracy/mean", "clients/accuracy/worst_tenth", "loss"} <= set(found)
    assert {"bytes_up", "seconds", "failed", "diagnostics/interference"} <= set(found)


def test_nothing_of_single_clients_is_told() -> None:
    told = values(record(client_epsilon={"ann": 1.0}))
    assert not any(client in name for name in told for client in ("ann", "bob", "cid"))


def test_nothing_of_how_many_took_part_is_told_where_it_is_a_secret() -> None:
    told = values(record(lr=0.1, epsilon=2.0, epsilon_valid=True), secret_turnout=True)
    assert {"round", "lr", "epsilon", "global/accuracy"} <= set(told)
    assert not {"clients", "failed", "bytes_up", "bytes_down", "seconds", "train_seconds"} & set(told)


def test_epsilon_of_a_debug_seed_is_none() -> None:
    assert "epsilon" not in values(record(epsilon=2.0, epsilon_valid=False))


def test_numbers_that_are_not_finite_are_left_out() -> None:
    scores = {"global": {"accuracy": float("nan"), "loss": float("inf"), "f1": None, "auc": 0.5}}
    assert {name for name in values(record(scores=scores)) if name.startswith("global/")} == {"global/auc"}


def test_more_tests_are_told_by_name() -> None:
    assert values(record(scores={"more_tests": {"hard": {"accuracy": 0.5}}}))["test hard/accuracy"] == 0.5


def test_names_have_only_characters_that_trackers_take() -> None:
    assert values(record(measures={"a<b>\u202e'": 1.0}))["measures/a_b___"] == 1.0


def test_long_lists_of_settings_are_counted() -> None:
    told = settings({"clients": {"ranks": [4] * 1000, "x": [1, 2]}})
    assert told == {"clients.ranks": "1000 values", "clients.x": [1, 2]}


def test_paths_of_a_machine_are_not_told() -> None:
    config = {
        "data": {"source": "/home/ann/rows.csv"},
        "train": {"lr": 0.1, "what": None},
        "model": {"name": "C:\\a\\b"},
    }
    assert settings(config) == {"data.source": "rows.csv", "train.lr": 0.1, "model.name": "b"}
