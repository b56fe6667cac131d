"""The start of a run: sites that are missing, that refuse, that have other labels, that are revoked or come later."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from parties import LABELS, OPEN, ROWS, SITES, Parties, configuration

import rondo
from outcomes import told
from rondo.errors import StopRequested
from rondo.federation.identity import enrolment, keys
from rondo.federation.identity.roster import Roster
from rondo.federation.server import gathering
from rondo.federation.server.listening import Clients, Listening
from rondo.federation.server.run import serve
from small_runs import Watch, write_rows
from watched import planted

config = partial(configuration, rounds=1, task=LABELS)


def relabelled(names: Mapping[str, str], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "label": names[row["label"]]} for row in rows]


# --- who must take part -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_all_clients_must_take_part_by_default(folder: Path) -> None:
    parties = Parties(folder, {"south": SITES["south"]})
    assert told(lambda: parties.run(config(folder), folder / "run", wait=8.0)) == [
        (
            "--wait",
            "after 8 s 2 of 3 clients take part, and all must, as clients.min_clients is not set: wait longer; "
            "clients.min_clients = 2 goes on with fewer",
        ),
        ("north (ann)", "is not connected"),
    ]
    assert "waiting for 3 clients; 2 take part, north (ann) is not connected" in parties.told
    assert not (folder / "run").exists()


@pytest.mark.slow
def test_refusal_of_all_is_told_at_once(folder: Path) -> None:
    """The server still waits: a site may come back with another contract, as one does here."""
    parties = Parties(folder)
    before = (
        "all sites have answered, and too few take part; waiting on, up to 60 s in all, for 3 clients; 1 takes part"
    )
    picky = OPEN.model_copy(update={"training": OPEN.training.model_copy(update={"methods": ["rolora"]})})
    starting, contracts = parties.start, {"south": picky}

    def start(site: str) -> None:
        starting(site, contract=contracts.pop(site, OPEN))

    def come_back() -> None:
        parties.until(before)
        parties.stop("south")
        parties.start("south")

    parties.start = start  # type: ignore[method-assign]
    thread = threading.Thread(target=come_back)
    thread.start()
    result = parties.run(config(folder), folder / "run")
    thread.join()
    (line,) = [line for line in parties.told if line.startswith(before)]
    assert "south (bob, cid) refuses: method: fedit, and its owner allows rolora" in line
    assert result.history[0]["clients"] == 3


@pytest.mark.slow
def test_fewer_clients_take_part_where_the_user_says_so(folder: Path) -> None:
    parties = Parties(folder, {"south": SITES["south"]})
    result = parties.run(config(folder, clients={"min_clients": 2}), folder / "run", answered=("south",))
    assert result.history[0]["clients"] == 2


# --- labels -------------------------------------------------------------------------------------------------------


def test_sites_with_other_labels_end_the_run(folder: Path) -> None:
    names = {"ann": ("no", "yes"), "bob": ("No", "Yes"), "cid": ("No", "Yes")}
    for site, clients in SITES.items():
        for client in clients:
            own = dict(zip(("neg", "pos"), names[client], strict=True))
            write_rows(folder / "data" / site / f"{client}.csv", relabelled(own, ROWS[client]))
    write_rows(folder / "data" / "test.csv", relabelled({"neg": "no", "pos": "yes"}, ROWS["ann"]))
    run = config(folder)
    del run["task"]["labels"]
    parties = Parties(folder)
    with pytest.raises(rondo.ConfigError) as error:
        parties.run(run, folder / "run")
    messages = [p.message for p in error.value.problems]
    assert 'task.labels = ["No", "Yes", "no", "yes"]' in messages[0]
    assert messages[1:] == [
        "at south only: 'No', 'Yes'",
        "at north only: 'no', 'yes'",
        "'No' and 'no' differ only by case",
        "'Yes' and 'yes' differ only by case",
    ]
    assert {str(e).count("its run failed for good") for e in parties.errors.values()} == {1}
    assert parties.errors.keys() == SITES.keys()
    assert [error for error in parties.errors.values() if not isinstance(error, rondo.ConfigError)] == []


# --- what is checked before the server listens --------------------------------------------------------------------

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no test file": ({"data": {"test_source": "none.csv"}}, "data.test_source: "),
    "a test file without texts": ({"task": {"text": "words"}}, "words"),
    "an unknown layer": ({"adapter": {"target_modules": ["qery"]}}, "adapter.target_modules"),
    "no model": ({"model": {"name": "./none"}}, "model.name"),
    "ranks of other clients": (
        {"algorithm": {"name": "hetlora"}, "clients": {"ranks": [1, 2]}},
        "clients.ranks: 2 for 3",
    ),
    "an option of another method": ({"algorithm": {"name": "fedit", "gamma": 3}}, "gamma"),
}


@pytest.mark.parametrize("labelled", [True, False], ids=["labels known", "labels asked"])
@pytest.mark.parametrize("name", WRONG)
def test_configuration_is_checked_before_the_server_listens(folder: Path, name: str, labelled: bool) -> None:
    changes, message = WRONG[name]
    run = config(folder)
    for section, values in changes.items():
        run[section] = {**run.get(section, {}), **values}
    if not labelled:
        del run["task"]["labels"]
    told: list[str] = []
    way = Listening(folder / "keys" / "server", "127.0.0.1", 0, wait=0.0)
    with pytest.raises(rondo.ConfigError, match=message):
        serve(run, way, run_dir=folder / "run", device="cpu", told=told.append)
    assert told == []


# --- the roster ---------------------------------------------------------------------------------------------------


def test_revoked_and_expired_sites_are_not_waited_for(folder: Path) -> None:
    enrolment.revoke(folder / "keys" / "server", "north")
    told: list[str] = []
    parties = Parties(folder, {"south": SITES["south"]}, told=told)
    result = parties.run(config(folder), folder / "run")
    assert "north is not among the run's sites: its key is revoked" in told
    assert result.history[0]["sampled"] == 2
    assert result.history[0]["failed"] == []


def test_roster_of_revoked_sites_starts_no_run(folder: Path) -> None:
    for site in SITES:
        enrolment.revoke(folder / "keys" / "server", site)
    with pytest.raises(rondo.ConfigError, match=r"no site is left in its roster \(north, south\)"):
        serve(config(folder), Listening(folder / "keys" / "server", "127.0.0.1", 0), device="cpu")


def test_clients_follow_the_roster_until_the_run_begins(folder: Path) -> None:
    path = folder / "keys" / "server" / "roster.json"
    told: list[str] = []
    clients = Clients(path.parent, told.append)
    assert dict(clients) == {"ann": "north", "bob": "south", "cid": "south"}
    north, south = Roster.read(path).sites
    Roster((replace(north, revoked=True), replace(south, clients=("bob", "dan")))).write(path)
    assert dict(clients) == {"bob": "south", "dan": "south"}
    assert told == ["north is not among the run's sites: its key is revoked"]
    clients.begin()
    Roster((north, south)).write(path)
    assert dict(clients) == {"bob": "south", "dan": "south"}
    assert [site.name for site in clients.sites] == ["south"]


@pytest.mark.parametrize("content", [None, '{"sites": [', '{"sites": [{"name": "north"}]}'])
def test_broken_roster_leaves_the_last_one_in_force(folder: Path, content: str | None) -> None:
    """Its owner hears of it once: a site that was revoked in it still counts."""
    path = folder / "keys" / "server" / "roster.json"
    told = list[str]()
    clients, before = Clients(path.parent, told.append), path.read_text()
    if content is None:
        path.unlink()
    else:
        path.write_text(content)
    reading = planted(Roster, "read", Mock(side_effect=Roster.read))
    with reading:
        for _ in range(3):
            assert dict(clients.items()) == {"ann": "north", "bob": "south", "cid": "south"}
        assert Roster.read.call_count == len(told) == 1  # type: ignore[attr-defined]
    assert told[0].startswith(f"the roster from before stays in force: {path}")
    path.write_text(before.replace('"revoked": false', '"revoked": true', 1))
    assert dict(clients) == {"bob": "south", "cid": "south"}


def test_roster_that_changes_while_it_is_gone_through(folder: Path) -> None:
    path = folder / "keys" / "server" / "roster.json"
    clients = Clients(path.parent, lambda line: None)
    pairs = iter(clients.items())
    seen = [next(pairs)]
    north, south = Roster.read(path).sites
    Roster((replace(south, revoked=True), north)).write(path)
    assert dict([*seen, *pairs]) == {"ann": "north", "bob": "south", "cid": "south"}
    assert dict(clients) == {"ann": "north"}


@pytest.mark.slow
def test_stop_ends_the_wait_and_leaves_the_sites_waiting(folder: Path) -> None:
    stop, told = threading.Event(), list[str]()
    parties = Parties(folder, {"south": SITES["south"]})

    def tell(line: str) -> None:
        told.append(line)
        if line.startswith("listening on"):
            parties.port = int(line.split(":")[1].split()[0])
            parties.start("south")
        if line.startswith("south takes part"):
            stop.set()

    way = Listening(folder / "keys" / "server", "127.0.0.1", 0)
    with pytest.raises(StopRequested):
        serve(config(folder), way, run_dir=folder / "run", device="cpu", told=tell, stop=stop)
    time.sleep(1.0)
    assert parties.running["south"][0].is_alive()
    assert [line for line in parties.told if "the run" in line and "over" in line] == []
    parties.stop("south")


def with_east(folder: Path) -> None:
    """A site east with a client dan, and its rows."""
    keys.make([], ["east"], folder / "keys", days=10, clients={"east": ["dan"]})
    write_rows(folder / "data" / "east" / "dan.csv", ROWS["bob"])


@pytest.mark.slow
def test_site_that_is_added_while_the_server_waits_takes_part(folder: Path) -> None:
    parties = Parties(folder, {"south": SITES["south"]})

    def add() -> None:
        parties.until("south takes part")
        with_east(folder)
        parties.start("east")
        parties.until("east takes part")
        parties.start("north")

    thread = threading.Thread(target=add)
    thread.start()
    result = parties.run(config(folder), folder / "run")
    thread.join()
    assert result.history[0]["clients"] == 4
    assert not parties.errors


@pytest.mark.slow
def test_site_that_is_added_later_waits_for_the_next_run(folder: Path) -> None:
    parties = Parties(folder)

    def act(done: int) -> None:
        if done == 1:
            with_east(folder)
            parties.start("east")
            parties.until("east is in the roster since")
        if done == 2:
            parties.stop("east")
            parties.start("east")
            time.sleep(1.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        parties.run(config(folder, rounds=3), folder / "run", observer=Watch(done=act), keep=True)
    lines = [line for line in parties.told if line.startswith("east ")]
    later = "it takes part from the next run on, or after rondo resume --roster-changed"
    assert lines == [f"east is in the roster since the run began: {later}"]
    with pytest.raises(rondo.ConfigError, match="--roster-changed"):
        parties.resume(folder / "run", keep=True)
    result = parties.resume(folder / "run", roster_changed=True)
    assert [r["clients"] for r in result.history] == [3, 3, 4]
    assert not parties.errors


def test_site_that_brings_some_of_its_clients_refuses_nothing() -> None:
    class Answered:
        def states(self) -> Any:
            return {"south": ("takes part", ""), "north": ("takes part", "")}

    class Refusing(Answered):
        def states(self) -> Any:
            return {**super().states(), "north": ("refuses", "rank")}

    for sites, refused in ((Answered(), False), (Refusing(), True)):
        waiting = gathering._Waiting(sites, {}, 3, 8.0, lambda line: None)  # type: ignore[arg-type]
        assert (waiting.settled, waiting.refused) == (True, refused)
