"""Units of privacy: rows, rows of several examples, and persons."""

from __future__ import annotations

from typing import Any

import pytest

from rondo.config import ConfigError, load
from rondo.config.schema import RunConfig
from rondo.data.units import Units, persons_of, units_of

PRIVACY = {"adversary": "server", "unit": "example", "clip": 1.0, "noise": 1.0, "delta": 1e-5}


class Halves:
    """A task that leaves rows without text out."""

    def encode(self, rows: Any) -> list[str]:
        return [row["text"] for row in rows if row["text"]]


def config(**privacy: Any) -> RunConfig:
    return load({"clients": {"weighting": "uniform"}, "privacy": {**PRIVACY, **privacy}}, [])


def units(rows: list[dict[str, Any]], by_row: list[range], train: list[int], **privacy: Any) -> Any:
    task: Any = Halves()
    chosen = config(**privacy)
    persons = persons_of(chosen.guarantee.group, "privacy.group", task, rows, by_row)
    return units_of(chosen, persons, by_row, train)


ROWS = [{"text": "a", "who": 1}, {"text": "b", "who": 2}, {"text": "c", "who": 1}]


def test_single_examples_are_their_own_units() -> None:
    assert units(ROWS, [range(1), range(1, 2), range(2, 3)], [0, 2]) is None
    assert Units.of(("a", "b")) == [[0], [1]]  # type: ignore[arg-type]


def test_examples_of_a_row_are_one_unit() -> None:
    assert units(ROWS, [range(2), range(2, 3), range(3, 6)], [0, 1, 3, 4, 5]) == [0, 0, 2, 2, 2]
    assert Units("abcde", [0, 0, 2, 2, 2]).places == [[0, 1], [2, 3, 4]]  # type: ignore[arg-type]


def test_rows_of_a_person_are_one_unit() -> None:
    assert units(ROWS, [range(2), range(2, 3), range(3, 4)], [0, 1, 2, 3], group="who") == [0, 0, 1, 0]


def test_person_in_two_unicode_forms_is_one_unit() -> None:
    rows = [{"text": "a", "who": "Zo\u00eb"}, {"text": "b", "who": "Zoe"}, {"text": "c", "who": "Zoe\u0308"}]
    assert units(rows, [range(1), range(1, 2), range(2, 3)], [0, 1, 2], group="who") == [0, 1, 0]


def test_row_that_is_left_out_shifts_no_person() -> None:
    rows = [{"text": text, "who": who} for text, who in (("", 3), ("a", 1), ("b", 1), ("c", 2))]
    assert units(rows, [range(1), range(1, 2), range(2, 3)], [0, 1, 2], group="who") == [0, 0, 1]


@pytest.mark.parametrize("row", [{"text": "d"}, {"text": "d", "who": None}])
def test_row_of_nobody_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"privacy\.group: a row does not say whose it is"):
        units([*ROWS, row], [range(1), range(1, 2), range(2, 3), range(3, 4)], [0], group="who")
