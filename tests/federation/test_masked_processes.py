"""Masked sums between processes, over Flower and TLS: SIGKILL of a site and of the server before, in and after each
letter. A program that comes back changes no bit; without a site that stays away, the sum is that of the others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deaths import Death, Programs, opened
from desk_line import SITES
from test_masked_kills import Expected, run_of

from outcomes import adapter
from rondo.federation.letter import SUMS

pytestmark = pytest.mark.slow

ROUNDS = 3
MOMENTS = ("before", "half of sum.session", "written", "leaving", "after")
SITE_DEATHS = [("round", "after"), *((kind, moment) for kind in SUMS for moment in MOMENTS)]
SERVER_DEATHS = [
    ("round", "after"),
    *((kind, moment) for kind in SUMS for moment in ("before", "in", "after")),
    ("ready", "half of sum.session"),
    ("masked", "half of sum.session"),
    ("unmask", "half of metrics.jsonl"),
]


@pytest.fixture(scope="module")
def expected(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Expected:
    return Expected(place, tmp_path_factory.mktemp("simulations"), ROUNDS)


def rounds(work: Path) -> list[dict[str, Any]]:
    """The records of all rounds. No site has opened two sets of an attempt, and no two sites different ones."""
    records = [json.loads(line) for line in (work / "run" / "metrics.jsonl").read_text().splitlines()]
    sets = set.union(*(opened(work / f"at-{site}") for site in SITES))
    assert sorted(attempt for attempt, *_ in sets) == [r["round"] for r in records if r["skipped"] is None]
    return records


@pytest.mark.parametrize(
    ("name", "kind", "moment"), [*(("south", *at) for at in SITE_DEATHS), *(("server", *at) for at in SERVER_DEATHS)]
)
def test_program_is_killed_and_comes_back(
    place: Path, tmp_path: Path, expected: Expected, name: str, kind: str, moment: str
) -> None:
    with Programs(place, tmp_path) as programs:
        programs.begin(run_of(place, rounds=ROUNDS), **{name: Death(kind, moment)})
        programs.must_die(name)
        programs.again(name)
        programs.end()
    assert [(r["skipped"], r["clients"]) for r in rounds(tmp_path)] == [(None, 3)] * ROUNDS
    assert adapter(tmp_path / "run") == expected.without_bob_in()


@pytest.mark.parametrize("moment", ["before", "leaving", "after"])
@pytest.mark.parametrize("kind", SUMS)
def test_site_is_killed_and_stays_away(place: Path, tmp_path: Path, expected: Expected, kind: str, moment: str) -> None:
    with Programs(place, tmp_path) as programs:
        programs.begin(run_of(place, rounds=ROUNDS), south=Death(kind, moment))
        programs.must_die("south")
        programs.is_gone("south")
        programs.end()
    # Once its vector has come, the others are as many as the threshold, and open the sum of all three.
    missing = (2,) if kind == "unmask" or (kind, moment) == ("masked", "after") else (1, 2)
    there = [(None, 2 if attempt in missing else 3) for attempt in range(ROUNDS)]
    assert [(r["skipped"], r["clients"]) for r in rounds(tmp_path)] == there
    assert adapter(tmp_path / "run") == expected.without_bob_in(*missing)
