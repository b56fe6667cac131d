"""Sites that are away cost no round: the run waits for them, and goes on."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
from parties import Parties, until
from simulations import assert_equal, simulated
from test_federation import config

from rondo.errors import RunStopped
from small_runs import Watch


def come_back(parties: Parties) -> None:
    """The sites, once the run waits for them."""
    until(lambda: [line for line in parties.told if "clients take part, and a round needs 3: waiting, " in line])
    for site in parties.sites:
        parties.start(site)


def leave(parties: Parties) -> None:
    for site in list(parties.running):
        parties.stop(site)
    threading.Thread(target=come_back, args=(parties,)).start()


@pytest.mark.slow
def test_run_waits_while_all_sites_are_away(folder: Path, tmp_path: Path) -> None:
    run = config(folder, rounds=4, clients={"min_clients": 3})
    expected = simulated(folder, run, tmp_path / "simulation")
    parties = Parties(folder)
    watch = Watch(done=lambda done: done == 2 and leave(parties))
    assert_equal(parties.run(run, tmp_path / "run", observer=watch, patience=0.1), expected)
    assert "enough clients take part: going on" in parties.told


@pytest.mark.slow
def test_round_waits_for_sites_that_leave_within_it(folder: Path, tmp_path: Path) -> None:
    """They were asked, so their letters wait for them; ``patience`` is for sites without which a round goes on."""
    run = config(folder, rounds=3, clients={"min_clients": 3})
    expected = simulated(folder, run, tmp_path / "simulation")
    parties = Parties(folder)
    watch = Watch(lambda index: index == 1 and leave(parties))
    assert_equal(parties.run(run, tmp_path / "run", observer=watch, patience=0.1), expected)


def test_unlucky_draws_do_not_end_a_run(folder: Path, tmp_path: Path) -> None:
    """A client of a round's draw stays away, and others are there: the next round draws anew, as often as it takes."""
    run = config(
        folder,
        rounds=6,
        task={"labels": ["neg", "pos"]},
        clients={"per_round": 2, "min_clients": 2, "sampling": "uniform"},
    )
    parties = Parties(folder, {"south": ("bob", "cid")})
    result = parties.run(run, tmp_path / "run", answered=("south",), patience=0.1)
    skipped = [record["skipped"] is not None for record in result.history]
    assert 3 in [sum(skipped[i : i + 3]) for i in range(4)]
    assert len(skipped) == 6
    assert False in skipped


def test_run_that_a_sites_old_folder_stopped_goes_on_with_the_newer_one(folder: Path, tmp_path: Path) -> None:
    """What was wrong was at the site, so the same server need not meet it again."""
    run = config(folder, rounds=7, clients={"min_clients": 3})
    parties, state = Parties(folder, state=tmp_path), tmp_path / "at-north"

    def restore(done: int) -> None:
        if done == 1:
            shutil.copytree(state, tmp_path / "backup")
        if done == 2:
            parties.stop("north")
            state.rename(tmp_path / "newer")
            (tmp_path / "backup").rename(state)
            parties.start("north")

    with pytest.raises(RunStopped, match="the site's folder is older, of round 1"):
        parties.run(run, tmp_path / "run", observer=Watch(done=restore))
    shutil.rmtree(state)
    (tmp_path / "newer").rename(state)
    parties.errors.clear()
    history = parties.resume(tmp_path / "run").history
    skipped = [record["skipped"] is not None for record in history]
    assert (len(skipped), sum(skipped), skipped[:2], skipped[-1]) == (7, 3, [False, False], False)
    assert parties.errors == {}
