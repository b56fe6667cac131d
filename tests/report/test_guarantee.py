"""The guarantee of a run in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from rondo.report.summary import guarantee_line

PLAIN = {"secure_aggregation": False, "simulation": False, "epsilon": 2.0, "delta": 1e-3, "epsilon_valid": True}
MASKS = {"unit": None, "adversary": "server", "secure_aggregation": True}


@pytest.mark.parametrize(
    ("privacy", "line"),
    [
        (
            {"unit": "client", "adversary": "reader", "simulation": True},
            "differential privacy of clients, against who reads the released model: epsilon 2 at delta 0.001",
        ),
        (
            {**MASKS, "unit": "client", "colluding": 2},
            "differential privacy of clients, against the server too with 2 of the sites: epsilon 2 at delta 0.001; "
            "masked sums, against the server: it sees sums alone",
        ),
        (
            {**MASKS, "unit": "client", "colluding": 0, "epsilon_valid": False},
            "differential privacy of clients, against the server too: epsilon 2 at delta 0.001, NOT VALID: "
            "privacy.debug_seed is set; masked sums, against the server: it sees sums alone",
        ),
        (
            {"unit": "example", "adversary": "server", "simulation": True, "epsilon": None},
            "differential privacy of rows, against the server too: none; against the machine of this simulation: "
            "nothing",
        ),
        (MASKS, "masked sums, against the server: it sees sums alone"),
        (
            {**MASKS, "simulation": True},
            "masked sums, against the server: it sees sums alone; against the machine of this simulation: nothing",
        ),
    ],
)
def test_guarantee_names_its_unit_and_adversary(privacy: dict[str, Any], line: str) -> None:
    assert guarantee_line({**PLAIN, **privacy}) == line
