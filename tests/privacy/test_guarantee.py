"""The promise of ``[privacy]``: its sentences, its answers, and that no other room has answers of its own."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rondo
from rondo.config.rules.privacy import privacy_checks
from rondo.config.schema import PrivacyConfig, RunConfig
from rondo.privacy.guarantee import Guarantee, added, sentence

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
            "its noise came from a known seed; masked sums, against the server: it sees sums alone",
        ),
        (
            {"unit": "example", "adversary": "server", "simulation": True, "epsilon": None},
            "differential privacy of rows, against the server too: none (numbers of rows are public); "
            "against the machine of this simulation: nothing",
        ),
        (MASKS, "masked sums, against the server: it sees sums alone"),
        (
            {**MASKS, "simulation": True},
            "masked sums, against the server: it sees sums alone; against the machine of this simulation: nothing",
        ),
    ],
)
def test_guarantee_names_its_unit_and_adversary(privacy: dict[str, Any], line: str) -> None:
    assert sentence({**PLAIN, **privacy}) == line


SECTIONS = [
    {"adversary": adversary, "unit": unit, "secure_aggregation": masks, **NUMBERS}
    for NUMBERS in ({"clip": 1.0, "noise": 1.0, "delta": 1e-3},)
    for adversary, unit, masks in itertools.product(("reader", "server"), (None, "client", "example"), (False, True))
]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: "-".join(map(str, list(section.values())[:3])))
def test_answers_of_a_record_are_those_of_its_configuration(section: dict[str, Any]) -> None:
    promise = RunConfig(privacy=PrivacyConfig(**section)).guarantee
    record = promise.record({"epsilon": 1.0, "epsilon_valid": True}, simulated=False)
    assert Guarantee.of(record).answers == promise.answers
    assert [list(pair) for pair in Guarantee.of(record).sentences(record)] == record["sentences"]


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: "-".join(map(str, list(section.values())[:3])))
def test_a_turnout_is_told_to_nobody_unless_noise_or_masks_cover_it(section: dict[str, Any]) -> None:
    """A reader of the released model learns how many clients take part in no setting that is allowed."""
    config = RunConfig(privacy=PrivacyConfig(**section))
    refused = {problem.path for problem in privacy_checks(config)} & {"privacy.adversary", "privacy.unit"}
    hidden = section["unit"] == "client" and section["adversary"] == "reader"
    assert refused or config.guarantee.secret_turnout == hidden


SWITCHES = re.compile(r"privacy\.(?:unit|adversary|secure_aggregation)\b")


def test_no_other_room_reads_the_section_privacy() -> None:
    source = Path(rondo.__file__).parent
    readers = {
        path.relative_to(source).as_posix(): found
        for path in source.rglob("*.py")
        if path.relative_to(source).parts[0] not in ("config", "privacy") and (found := sorted(_switches(path)))
    }
    assert readers == {}


def _switches(path: Path) -> Iterator[str]:
    """The keys of ``[privacy]`` that a file reads as attributes, and switches by their names, in words too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Attribute(attr="adversary" | "secure_aggregation" as name):
                yield name
            case ast.Attribute(attr=name, value=ast.Attribute(attr="privacy") | ast.Name(id="privacy")):
                if name in PrivacyConfig.model_fields:
                    yield f"privacy.{name}"
            case ast.Constant(value="adversary" | "secure_aggregation" as name):
                yield name
            case ast.Constant(value=str(text)) if named := SWITCHES.findall(text):
                yield from named
            case ast.Attribute(
                attr="unit", value=ast.Attribute(attr="guarantee") | ast.Name(id="guarantee" | "promise")
            ):
                yield "privacy.unit"
            case ast.Subscript(slice=ast.Constant(value="unit")):
                yield "privacy.unit"


def spent(epsilon: float | None = 2.0, *, valid: bool = True, **section: Any) -> tuple[dict[str, Any], Guarantee]:
    promise = Guarantee.of({"unit": "example", "adversary": "server", "delta": 0.01, "noise": 1.0, **section})
    return {"epsilon": epsilon, "epsilon_valid": valid}, promise


def test_records_alone_add_up() -> None:
    assert added([spent()] * 3) == "each run by itself; all 3 together: epsilon 6 at delta 0.03"


@pytest.mark.parametrize(
    "other",
    [
        spent(None),
        spent(valid=False),
        spent(delta=0.99),
        spent(unit="client"),
        spent(unit="client", adversary="reader"),
        spent(group="who"),
    ],
)
def test_one_run_without_the_same_guarantee_leaves_none_for_all(other: tuple[dict[str, Any], Guarantee]) -> None:
    """Infinite, of known noise, with deltas that reach one together, or of another unit or adversary."""
    assert added([spent(), other]).endswith("all 2 together: none")
