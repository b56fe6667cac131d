"""The guarantee of a run in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from rondo.report.summary import guarantee_line


@pytest.mark.parametrize(
    ("privacy", "against"),
    [
        ({"unit": "client", "adversary": "reader"}, "of clients, against who reads the released model: "),
        (
            {"unit": "client", "adversary": "server", "colluding": 2},
            "of clients, against the server too with 2 of the sites: ",
        ),
        ({"unit": "client", "adversary": "server", "colluding": 0}, "of clients, against the server too: "),
        ({"unit": "example", "adversary": "server"}, "of rows, against the server too: "),
    ],
)
def test_guarantee_names_its_unit_and_adversary(privacy: dict[str, Any], against: str) -> None:
    spent = {"epsilon": 2.0, "delta": 1e-3, "epsilon_valid": True}
    # A run's configuration has every key, whether the run uses it or not.
    assert guarantee_line({"colluding": 1, **spent, **privacy}).startswith(f"differential privacy {against}epsilon 2")
