"""Server and sites of different versions of Rondo: the protocol's number decides."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from desks import Make, asked, with_

from rondo import __version__
from rondo.config import load
from rondo.engine.wire.strict import PROTOCOL, Rejected
from rondo.federation.environment import differences, here
from rondo.federation.plan import Consent, NotAPlan, Plan
from rondo.federation.server.remote_run import plan_of
from rondo.records.later import CAME_LATER


@pytest.mark.parametrize("version", ["0.0.9", "9.0"])
def test_one_side_is_upgraded_alone(plan: Plan, tmp_path: Path, desk: Make, version: str) -> None:
    consent = asked(desk(tmp_path), replace(plan, rondo=version))
    assert not consent.refused
    assert consent.environment["rondo"] == __version__
    assert differences({**here(), "rondo": version}, consent.environment) == {"rondo": __version__}


def test_plan_of_a_newer_server_has_no_key_that_came_later_at_its_default() -> None:
    """A site that lacks the key takes part, as the run is what it was before the key came."""

    def keys(**sections: Any) -> set[tuple[str, str]]:
        config = plan_of(load(sections, check_paths=False), "run", None, "").config
        return {(name, key) for name, section in config.items() if isinstance(section, dict) for key in section}

    assert not keys() & CAME_LATER
    assert keys(adapter={"use_dora": True}, train={"lr_ratio": 4.0}) & CAME_LATER == {
        ("adapter", "use_dora"),
        ("train", "lr_ratio"),
    }


def test_key_that_one_version_lacks_is_told_with_both(plan: Plan, tmp_path: Path, desk: Make) -> None:
    told: list[str] = []
    newer = replace(with_(plan, train={"invented": 2}), rondo="9.0")
    consent = asked(desk(tmp_path, told=told), newer)
    assert consent.refused == "it cannot run the plan as it is: train.invented, rondo; its owner sees why"
    assert f"the server has '9.0', this site '{__version__}': upgrade the older one" in told[-1]
    assert not asked(desk(tmp_path), with_(replace(plan, rondo="9.0"), train={"invented": None})).refused


@pytest.mark.parametrize(("protocol", "side"), [(PROTOCOL + 1, "this side"), (PROTOCOL - 1, "the other side")])
def test_other_protocol_names_versions_and_the_side_to_upgrade(
    plan: Plan, tmp_path: Path, desk: Make, protocol: int, side: str
) -> None:
    words = f"{protocol} (Rondo '9.0'), and this side speaks {PROTOCOL}: upgrade {side}"
    letter = json.dumps({**json.loads(replace(plan, rondo="9.0").encode()), "protocol": protocol}).encode()
    with pytest.raises(NotAPlan) as fault:
        Plan.decode(letter)
    assert str(fault.value) == f"the server speaks another protocol: {words}; this side has Rondo '{__version__}'"
    refusal = asked(desk(tmp_path), letter)
    assert (refusal.refused, refusal.environment) == (str(fault.value), {"rondo": __version__})
    answer = {**json.loads(Consent({}, environment={"rondo": "9.0"}).encode()), "protocol": protocol, "new": 1}
    with pytest.raises(Rejected) as rejection:
        Consent.decode(json.dumps(answer).encode())
    assert rejection.value.detail == words
