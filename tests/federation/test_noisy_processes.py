"""Noise of the sites between processes: SIGKILL of a site or of the server. Each vector that leaves is spent once, and
none is forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("dp_accounting")

from deaths import ATTEMPT, Death, Programs, left
from desk_line import SITES
from test_masked_processes import ROUNDS, rounds
from test_noisy_sums import claimed, noisy, of_rows

from rondo.federation.site.ledger import SiteLedger
from rondo.privacy.accounts.account import read

pytestmark = pytest.mark.slow


def vectors(work: Path, site: str, attempt: int) -> set[str]:
    """Digests of the vectors that have left a site in an attempt."""
    letters = left(work / f"at-{site}")
    return {e["sha256"] for e in letters if (e["kind"], e["round"]) == ("masked vector", attempt)}


def spent_once(work: Path, more: int = 0, at: str = "") -> None:
    """At the server every sum, and at each site every vector, however often it left. ``more``: vectors of the site
    ``at`` that were spent and did not leave."""
    assert [r["epsilon"] for r in rounds(work)] == [claimed(k + 1) for k in range(ROUNDS)]
    account = (work / "run" / "privacy.jsonl").read_bytes().splitlines()
    assert [entry.attempt for entry in read(account)] == list(range(ROUNDS))
    for site in SITES:
        count = sum(len(vectors(work, site, attempt)) for attempt in range(ROUNDS)) + (more if site == at else 0)
        assert [e for *_, e in SiteLedger(work / f"at-{site}", {}).accounts(1e-5)] == [of_rows(count)]


@pytest.mark.parametrize(
    ("kind", "moment", "spare"),
    [
        ("masked", "half of privacy.jsonl", 0),
        ("masked", "half of sum.session", 1),  # the vector is spent and not there: another one leaves
        ("masked", "leaving", 0),
    ],
)
def test_site_that_dies_spends_each_vector_once(
    place: Path, tmp_path: Path, kind: str, moment: str, spare: int
) -> None:
    with Programs(place, tmp_path) as programs:
        programs.begin({**noisy(place), "rounds": ROUNDS}, south=Death(kind, moment))
        programs.must_die("south")
        programs.again("south")
        programs.end()
    spent_once(tmp_path, spare, "south")
    assert [len(vectors(tmp_path, "south", attempt)) for attempt in range(ROUNDS)] == [1] * ROUNDS


@pytest.mark.parametrize(
    ("kind", "moment", "sites"),
    [
        ("masked", "in", 1),
        ("masked", "half of sum.session", 3),
        ("unmask", "in", 0),
        ("unmask", "half of privacy.jsonl", 0),
    ],
)
def test_server_that_dies_has_spent_and_spends_a_sum_once(
    place: Path, tmp_path: Path, kind: str, moment: str, sites: int
) -> None:
    """``sites`` have sent a vector that is in no sum, and send another."""
    with Programs(place, tmp_path) as programs:
        programs.begin({**noisy(place), "rounds": ROUNDS}, server=Death(kind, moment))
        programs.must_die("server")
        programs.again("server")
        programs.end()
    spent_once(tmp_path)
    assert sum(len(vectors(tmp_path, site, ATTEMPT)) for site in SITES) == len(SITES) + sites
