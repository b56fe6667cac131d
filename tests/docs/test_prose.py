"""Pages for readers have no more faults of prose than they had, and the rules see what they are for."""

from __future__ import annotations

import json

import pytest
from prose import CEILINGS, above, faults, pages

MOST = json.loads(CEILINGS.read_text(encoding="utf-8"))
LONG = "A sentence " + "of words " * 12 + "ends here."


def test_no_page_has_more_faults_than_it_had() -> None:
    assert above(MOST) == []


def test_ceilings_are_of_pages() -> None:
    assert MOST.keys() - {*pages()} == set()


@pytest.mark.parametrize(
    "text",
    [
        "A site is no client.",
        "All but for one.",
        "The data are to be had.",
        "Start anew.",
        "The runs and those that failed.",
        "Smaller than that of the client.",
        "Where a client fails, the round goes on.",
        "See tests/docs.",
        "One of its own, of its own\nand of their own.",
        LONG,
        f"- one\n- {LONG}\n- two",
    ],
)
def test_a_fault_is_seen(text: str) -> None:
    assert len(faults("README.md", text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "There is no client. It is no longer there.",
        f"```\n{LONG}\n```",
        f"| {LONG} |\n|---|",
        "<!-- not run: tests/docs has it -->",
        "The folder where rows lie. `data.test_source`",
        f"{LONG[:60]}.\n\n{LONG[:60]}.",
    ],
)
def test_other_text_has_no_fault(text: str) -> None:
    assert faults("README.md", text) == []
