"""A masked round with too few sites present waits for them: a sum of one site hides nothing."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from desk_line import DeskLine
from parties import until
from simulations import simulated
from test_masked_kills import listening, run_of, served

from outcomes import adapter
from rondo.federation.server.run import serve

WAITING = "1 of 3 clients take part, at too few sites for a masked sum: waiting, "
GOING_ON = "enough clients take part: going on"


def come_back(line: DeskLine, *sites: str) -> None:
    """Start the sites once a round waits."""

    def start() -> None:
        until(lambda: [text for text in line.told if text.startswith(WAITING)])
        for site in sites:
            line.start(site)

    threading.Thread(target=start).start()


@pytest.mark.sweep(4)
@pytest.mark.parametrize("kind", ["round", "ready", "masked", "unmask"])
def test_round_waits_for_sites_that_leave_within_it(place: Path, tmp_path: Path, kind: str) -> None:
    """Its sum is that of a round without the outage."""

    def strike(site: str, of: str, moment: str) -> None:
        if (of, moment) == (kind, "before") and site in struck:
            struck.remove(site)
            line.kill(site, returns=False)

    struck, line = ["south", "west"], DeskLine(place, tmp_path, strike)
    come_back(line, "south", "west")
    result = served(place, line, tmp_path / "run")
    assert not struck
    assert [r["skipped"] for r in result.history] == [None, None]
    assert adapter(result.run_dir) == adapter(simulated(place, run_of(place), tmp_path / "simulation").run_dir)
    assert GOING_ON in line.told


@pytest.mark.slow
def test_run_waits_between_rounds(place: Path, tmp_path: Path) -> None:
    """``clients.min_clients`` is 1, so the run starts with one site, and no round begins before there are two."""
    line = DeskLine(place, tmp_path)
    line.kill("south", returns=False)
    line.kill("west", returns=False)
    come_back(line, "south", "west")
    with line.served():
        way = replace(listening(place), wait=0.5)
        result = serve(run_of(place), way, run_dir=tmp_path / "run", device="cpu", told=line.told.append)
    assert [(r["skipped"], r["clients"]) for r in result.history][1:] == [(None, 3)]
    assert result.history[0]["skipped"] is None
    assert not any("WARNING" in text for text in line.told)
