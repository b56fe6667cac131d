"""What is said of a run's sites: by rondo federate status, in the run's record, and to the sites at its end."""

from __future__ import annotations

import errno
import json
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from liars import lying
from parties import LABELS, OPEN, SITES, Parties, configuration

import rondo
from rondo.federation import environment
from rondo.federation.plan import Consent
from rondo.federation.server.status import status, status_lines
from rondo.records.durable import Journal
from small_runs import Watch

config = partial(configuration, task=LABELS)


TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
SAME = "the bits are those of a simulation: all have rondo "


@pytest.mark.slow
def test_states_while_it_runs_after_a_crash_and_at_the_end(folder: Path) -> None:
    parties, lines = Parties(folder), list[list[str]]()

    def act(done: int) -> None:
        lines.append(list(status_lines(folder / "run")))
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        parties.run(config(folder, rounds=3), folder / "run", observer=Watch(done=act))
    running, died = lines[0], list(status_lines(folder / "run"))
    assert running[0] == "fedit: running, 1 of 3 rounds"
    assert running[2].startswith(SAME)
    for name, line in zip(SITES, running[3:], strict=True):
        assert re.fullmatch(f"{name}: takes part since {TIME}; it last answered in round 1, at {TIME}", line)
    assert died[0] == "fedit: not running, 2 of 3 rounds"
    assert died[3] == "the sites as the server last knew them:"
    for name, line in zip(SITES, died[4:], strict=True):
        assert re.fullmatch(f"{name}: takes part since {TIME}; it last answered in round 2, at {TIME}", line)

    parties.resume(folder / "run")
    for_programs = status(folder / "run")
    assert (for_programs["state"], for_programs["round"], for_programs["rounds"]) == ("finished", 3, 3)
    assert {name: site["rounds"] for name, site in for_programs["sites"].items()} == {"north": 3, "south": 3}
    finished = list(status_lines(folder / "run"))
    assert finished[0] == "fedit: finished, 3 of 3 rounds"
    assert finished[3:] == ["north: took part (3 rounds)", "south: took part (3 rounds)"]


@pytest.mark.parametrize("comes", [True, False])
@pytest.mark.slow
def test_site_that_takes_no_part(folder: Path, comes: bool) -> None:
    parties = Parties(folder, SITES if comes else {"south": SITES["south"]})
    starting = parties.start

    def start(site: str) -> None:
        picky = OPEN.model_copy(update={"training": OPEN.training.model_copy(update={"methods": ["rolora"]})})
        starting(site, contract=picky if site == "north" else OPEN)

    parties.start = start  # type: ignore[method-assign]
    answered = ("north", "south") if comes else ("south",)
    parties.run(config(folder, rounds=1, clients={"min_clients": 2}), folder / "run", answered=answered)
    refused = "refused: method: fedit, and its owner allows rolora"
    assert list(status_lines(folder / "run"))[-2:] == [
        f"north: {refused if comes else 'never came'}",
        "south: took part (1 round)",
    ]


# --- where sites compute ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_another_environment_is_recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(desk: Any, kind: str | None, letter: bytes) -> bytes:
        answer: bytes = desk.answer(kind, letter)
        if kind != "plan":
            return answer
        consent = Consent.decode(answer)
        return Consent(consent.clients, environment={**consent.environment, "torch": "1.0", "x": "y"}).encode()

    lying(monkeypatch, lie)
    parties = Parties(folder)
    parties.run(config(folder), folder / "run")
    (line,) = [line for line in parties.told if "simulation" in line]
    assert line.startswith("the bits may not be those of a simulation: the server has rondo ")
    assert line.endswith("; north has torch 1.0")
    assert line in list(status_lines(folder / "run"))
    record = json.loads((folder / "run" / "federation.json").read_text())
    assert record["server"] == environment.here()
    assert record["sites"] == {"north": {"torch": "1.0"}, "south": {}}


@pytest.mark.slow
def test_equal_environments_are_recorded(folder: Path) -> None:
    parties = Parties(folder)
    parties.run(config(folder), folder / "run")
    (line,) = [line for line in parties.told if "simulation" in line]
    assert line.startswith(SAME)


@pytest.mark.slow
def test_environment_of_a_site_that_comes_back_elsewhere(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told once, stays on record, and is not forgotten when the site comes back as it was."""
    threads = [str(n) for n in (1, 7, 7, 1)]
    real = environment.here()

    def lie(desk: Any, kind: str | None, letter: bytes) -> bytes:
        answer: bytes = desk.answer(kind, letter)
        if kind != "plan":
            return answer
        here = {**real, "threads": real["threads"] if threads.pop(0) == "1" else "7"}
        return Consent(Consent.decode(answer).clients, environment=here).encode()

    lying(monkeypatch, lie)
    parties = Parties(folder)

    def act(done: int) -> None:
        before = sum(line.startswith("north takes part") for line in parties.told)
        parties.stop("north")
        parties.start("north")
        while sum(line.startswith("north takes part") for line in list(parties.told)) == before:
            time.sleep(0.01)

    parties.run(config(folder, rounds=3), folder / "run", observer=Watch(done=act), patience=60.0)
    lines = [line for line in parties.told if "simulation" in line]
    assert [line.startswith(SAME) for line in lines] == [True, False]
    assert lines[1].endswith("; north has threads 7")
    assert lines[1] in list(status_lines(folder / "run"))


# --- the end of a run ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_failed_run_is_over_for_its_sites(folder: Path) -> None:
    """They are told that it failed, and not what is in the server's error."""
    parties = Parties(folder)

    def act(done: int) -> None:
        raise ZeroDivisionError("secret of the server")

    with pytest.raises(ZeroDivisionError):
        parties.run(config(folder), folder / "run", observer=Watch(done=act), keep=True)
    for site in SITES:
        parties.join(site)
    for error in parties.errors.values():
        assert isinstance(error, rondo.ConfigError)
        assert "--server: its run failed for good: the server failed (ZeroDivisionError)" in str(error)
        assert "secret" not in str(error)
    assert parties.errors.keys() == SITES.keys()


@pytest.mark.slow
def test_sites_wait_for_a_server_whose_disk_was_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parties, real = Parties(folder), Journal.append

    def append(self: Journal, line: bytes) -> None:
        if self.position.bytes:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(self, line)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", append)
        with pytest.raises(rondo.RunStopped, match=r"No space left on device\. Committed rounds are in"):
            parties.run(config(folder), folder / "run", keep=True)
    assert len(parties.resume(folder / "run").history) == 2
    assert not parties.errors


def test_site_that_stays_waits_for_the_next_run(folder: Path) -> None:
    parties = Parties(folder, options={"stay": True})

    def act(done: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        parties.run(config(folder), folder / "run", observer=Watch(done=act), keep=True)
    parties.until("the run failed: the server failed (ZeroDivisionError); its owner sees why")
    assert [site for site, (thread, _) in parties.running.items() if not thread.is_alive()] == []
    for site in list(parties.running):
        parties.stop(site)
    assert not parties.errors
