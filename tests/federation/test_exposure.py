"""The tables of what letters tell have a line for everything that there is, and the page has the tables."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import exposure
import pytest

from rondo.config.reference import keys
from rondo.federation import letter
from rondo.federation.server.line import door
from rondo.federation.site.contract.document import Contract

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "what-each-party-sees.md"


def test_every_kind_of_letter_has_its_lines() -> None:
    assert exposure.KINDS.keys() == letter.KINDS.keys()
    for coming, parts in exposure.KINDS.values():
        assert coming in exposure.COMES
        assert [part for part in parts if part not in exposure.LEAVES] == []


@pytest.mark.parametrize("table", ["LEAVES", "COMES"])
def test_every_field_has_its_line(table: str) -> None:
    for part, lines in getattr(exposure, table).items():
        assert lines.keys() == {field.name for field in fields(part)}, part


def test_every_request_has_its_line() -> None:
    assert exposure.BESIDE.keys() == {route.rpartition("/")[2] for route in door.ROUTES}


def test_limits_are_keys_of_the_contract() -> None:
    known = {
        key.path
        for name, field in Contract.model_fields.items()
        for key in keys(field.annotation, f"{name}.")  # type: ignore[arg-type]
    }
    named = {
        word for lines in exposure.LEAVES.values() for line in lines.values() for word in line.limit.split("`")[1::2]
    }
    assert named <= known
    assert {key for key in known if key.startswith("outgoing.")} - named == {"outgoing.mb_per_day"}, "of all letters"


def test_page_has_the_tables() -> None:
    assert exposure.markdown() in PAGE.read_text(encoding="utf-8")
