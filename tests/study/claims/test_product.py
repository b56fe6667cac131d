"""Short forms of arms and claims in an entry's file."""

from __future__ import annotations

from typing import Any

import pytest

from rondo.errors import ConfigError
from rondo.study.claims.product import spread

METHODS = {"a": {"algorithm": {"name": "fedit"}}, "b": {"algorithm": {"name": "rolora"}, "privacy": {"clip": 1.0}}}
RAW: dict[str, Any] = {"product": {"method": METHODS, "epsilon": {"1": {"privacy": {"noise": 7.0}}, "8": {}}}}


def test_arms_are_all_combinations_and_those_that_are_written_out() -> None:
    arms = spread({**RAW, "arms": {"c": {}, "a-8": {"rounds": 3}}}, "own")["arms"]
    assert list(arms) == ["a-1", "a-8", "b-1", "b-8", "c"]
    assert arms["b-1"] == {"algorithm": {"name": "rolora"}, "privacy": {"clip": 1.0, "noise": 7.0}}
    assert arms["b-8"]["privacy"] == {"clip": 1.0}
    assert arms["a-8"] == {"rounds": 3}


def test_claim_is_one_for_each_arm() -> None:
    bound = {"each": {"a": "A", "b": "B"}, "claim": "{name} learns", "arm": "{arm}-8", "at_least": 0.5}
    plain = {"claim": "c", "plus": ["a-1"]}
    asked = spread({**RAW, "bounds": [bound], "contrasts": [{"each": {"a": "A"}, "plus": ["{arm}-1"]}, plain]}, "own")
    assert asked["bounds"] == [
        {"claim": "A learns", "arm": "a-8", "at_least": 0.5},
        {"claim": "B learns", "arm": "b-8", "at_least": 0.5},
    ]
    assert asked["contrasts"] == [{"plus": ["a-1"]}, plain]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"product": 3}, "product: should be tables of arms' tables"),
        ({"product": {"method": {"a": 3}}}, "product: should be tables of arms' tables"),
        ({"bounds": [{"each": 3}]}, "bounds.each: should be a table of names by arm"),
    ],
)
def test_short_form_that_is_none_is_told(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        spread(raw, "own")
