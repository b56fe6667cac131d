"""Clients by nature of which some are drawn, as of LEAF's users: those with enough rows, by the seed."""

from __future__ import annotations

from typing import Any

import pytest

from rondo.config.load import load as load_config
from rondo.data.client_rows import Dealt, deal_rows, resolved
from rondo.data.labels import find_labels
from rondo.data.sources import load
from rondo.errors import ConfigError

ROWS = [{"text": f"w{i}", "label": "ab"[i % 2], "user": f"u{user}"} for user in range(1, 11) for i in range(user)]
"""Users 1 to 10, each with as many rows."""


def dealt(clients: int | None, seed: int = 0, **partition: Any) -> Dealt:
    config = load_config(
        {
            "seed": seed,
            "task": {"text": "text", "label": "label"},
            "data": {"source": "given in Python", "min_examples": 5},
            "partition": {"kind": "natural", "column": "user", **({"clients": clients} if clients else {})},
        },
        check_paths=False,
    )
    source = load(config, ROWS)
    config = resolved(config, source)
    return deal_rows(config, source, find_labels(config, source))


def test_drawn_clients_have_enough_rows() -> None:
    assert sorted(dealt(None).rows, key=len) == ["u5", "u6", "u7", "u8", "u9", "u10"]
    drawn = dealt(3)
    assert len(drawn.rows) == 3
    assert {client: rows for client, rows in drawn.rows.items() if not len(rows) == int(client[1:]) >= 5} == {}
    assert list(drawn.rows) == sorted(drawn.rows)


def test_rows_of_other_clients_are_counted() -> None:
    drawn = dealt(3)
    used, too_small = sum(map(len, drawn.rows.values())), sum(drawn.too_small.values())
    assert drawn.loaded == used + too_small + drawn.undealt == 55
    assert drawn.clients_unsampled == 3


def test_draw_follows_the_seed() -> None:
    assert list(dealt(3, 1).rows) == list(dealt(3, 1).rows)
    assert len({tuple(dealt(3, seed).rows) for seed in range(8)}) > 3


def test_more_clients_than_there_are_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"partition\.clients: 7, but only 6 clients have data\.min_examples = 5"):
        dealt(7)
